// Sampling one query: every class has a Gumbel of its own, fixed by (seed, row, class), and the argmax of
// link(z) / T + gumbel is an exact sample. The classes whose keys may be the best are scored, their worst key is the threshold,
// and what can still reach it is read on, level by level.
//
// Filters never sort V classes: the classes are taken in the order of their keys and the first that passes is the
// sample. Whether one is in the nucleus depends on the mass of the classes better than it: see sampling/nucleus.cpp.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "executor/betting.h"
#include "executor/histogram.h"

namespace headlong {
namespace {

constexpr int64_t kFirst = 1;  // classes by key at first

}  // namespace

std::vector<Answer> sample(const Executor& e, const double* hidden, int64_t count, const SampleRule& rule,
                                     const Question& question, bool dense_only, std::vector<Draw>* draws) {
    draws->assign(count * rule.n, Draw{});
    std::vector<Answer> answers(count);
    std::vector<int64_t> rows(count);
    std::iota(rows.begin(), rows.end(), 0);
    Question asked = question;
    asked.beta = 1 / rule.temperature;
    asked.keep = true;
    asked.eps = kInf;  // no sample asks for a normaliser
    const bool by_mass = rule.top_p < 1 || rule.min_p > 0;
    asked.k = rule.top_k > 0 ? std::min(rule.top_k, e.vocab) : by_mass ? 1 : 0;
    over_blocks(e, 
        hidden, rows, asked, dense_only,
        [&](Look& look, int q, int threads, Answer& answer) {
            return resolve_sample(e, look, q, asked, rule, threads, draws->data() + look.rows[q] * rule.n, answer);
        },
        [&](const std::vector<int64_t>& left) { finish_samples(e, hidden, left, asked, rule, *draws, answers); },
        answers);
    if (e.budget > 0 && e.has_preview && !dense_only)
        for (Draw& draw : *draws) draw.proved = false;
    return answers;
}

Status resolve_sample(const Executor& e, Look& look, int q, const Question& question, const SampleRule& rule, int threads,
                                Draw* draws, Answer& answer) {
    if (rule.top_k == 0 && (rule.top_p < 1 || rule.min_p > 0))
        return draw_filtered(e, look, q, question, rule, threads, draws, answer);
    std::vector<Scored> best;
    Known known;
    if ((rule.top_k > 0 || by_budget(e, look)) && !find_best(e, look, q, question, threads, best, known, answer)) return Status::dear;
    if (rule.top_k > 0) {
        const std::vector<Scored> kept = filtered(e, std::move(best), rule);
        for (int i = 0; i < rule.n; ++i) draws[i] = pick(e, kept, rule, look.rows[q], i);
        return Status::done;
    }
    for (int i = 0; i < rule.n; ++i) {
        std::vector<Keyed> first;
        Keys keys;
        keys.draw = static_cast<uint32_t>(i);
        if (!best_keys(e, look, q, rule, 1, threads, known, keys, first, answer)) return Status::dear;
        if (!first.empty()) draws[i] = {first[0].id, first[0].z, first[0].key, true};
    }
    return Status::done;
}

// The radii of the look, and no class read further.
void start_knowing(const Executor& e, Look& look, int q, int threads, Known& known) {
    if (!known.rad.empty()) return;
    known.rad = look.rad.empty() ? radii(e, look, q, threads) : std::move(look.rad);
    known.depth.resize(e.padded);
    std::memset(known.depth.data(), 0, e.padded);
}

// The k best classes, and all that were scored on the way. Under a budget the estimates of the others are taken for the truth:
// the distribution is the published method's own.
bool find_best(const Executor& e, Look& look, int q, const Question& question, int threads, std::vector<Scored>& best, Known& known,
                    Answer& answer) {
    bool found = true;
    if (by_budget(e, look)) {
        Interval lse{0, kInf};
        known.scored = spend_budget(e, look, q, question, threads, lse);
        best.assign(known.scored.begin(), known.scored.begin() + std::min<size_t>(question.k, known.scored.size()));
    } else {
        std::vector<float> est, upper;
        Known* further = known.rad.empty() ? nullptr : &known;
        found = best_of(e, look, q, question.k, threads, best, known.scored, est, upper, answer, further);
        for (const Scored& s : known.scored) {
            look.est[q * e.padded + s.id] = -std::numeric_limits<float>::infinity();
            if (further != nullptr) known.rad[s.id] = 0;
        }
    }
    answer.rows += static_cast<int64_t>(known.scored.size());
    answer.bytes += static_cast<double>(known.scored.size()) * e.row_bytes();
    return found;
}

// Scores rows; they leave the estimates.
void score_known(const Executor& e, Look& look, int q, std::vector<Scored>& rows, int threads, Known& known, Answer& answer) {
    float* est = look.est.data() + q * e.padded;
    if (by_budget(e, look)) {
        for (Scored& s : rows) s.z = est[s.id];
    } else {
        score(e, &look.hidden[q * e.dim], rows, threads);
        answer.rows += static_cast<int64_t>(rows.size());
        answer.bytes += static_cast<double>(rows.size()) * e.row_bytes();
    }
    for (const Scored& s : rows) {
        est[s.id] = -std::numeric_limits<float>::infinity();
        known.rad[s.id] = 0;
    }
    known.scored.insert(known.scored.end(), rows.begin(), rows.end());
}

// Reads each of `ids` one level further: its next codes, or the row itself.
void read_on(const Executor& e, Look& look, int q, const std::vector<int32_t>& ids, int threads, Known& known, Answer& answer) {
    const int levels = look.source == &e.preview ? static_cast<int>(e.deeper.size()) : 0;
    std::vector<std::vector<int32_t>> at(levels);
    std::vector<Scored> last;
    for (int32_t id : ids) {
        if (levels > 0 && known.depth[id] < levels) at[known.depth[id]++].push_back(id);
        else last.push_back({id, 0});
    }
    for (int level = 0; level < levels; ++level) read_deeper(e, look, q, level, at[level], threads, known.rad, answer);
    score_known(e, look, q, last, threads, known, answer);
}

// Keeps of classes sorted by logit what top_p, then min_p leave; top_p = 1 and min_p = 0 keep all.
std::vector<Scored> filtered(const Executor& e, std::vector<Scored> sorted, const SampleRule& rule) {
    if (sorted.empty()) return sorted;
    const double beta = 1 / rule.temperature, most = e.linked(sorted[0].z) * beta;
    double total = 0, before = 0;
    for (const Scored& s : sorted) total += std::exp(e.linked(s.z) * beta - most);
    size_t keep = 0;
    for (; keep < sorted.size(); ++keep) {
        const double f = e.linked(sorted[keep].z) * beta - most;
        if (keep > 0 && ((rule.top_p < 1 && before >= rule.top_p * total) || (rule.min_p > 0 && f < std::log(rule.min_p))))
            break;
        before += std::exp(f);
    }
    sorted.resize(keep);
    return sorted;
}

Draw pick(const Executor& e, const std::vector<Scored>& kept, const SampleRule& rule, uint64_t row, uint32_t draw) {
    Draw out;
    for (const Scored& s : kept) {
        const double key = e.linked(s.z) / rule.temperature + gumbel(*e.kernels, rule.seed, rule.row0 + row, draw, s.id + rule.class0);
        if (out.id < 0 || key > out.score) out = {s.id, s.z, key, true};
    }
    return out;
}

// top_p and min_p over all classes.
Status draw_filtered(const Executor& e, Look& look, int q, const Question& question, const SampleRule& rule, int threads,
                               Draw* draws, Answer& answer) {
    std::vector<Scored> best;
    Known known;
    if (!by_budget(e, look)) start_knowing(e, look, q, threads, known);
    if (!find_best(e, look, q, question, threads, best, known, answer)) return Status::dear;
    if (best.empty()) return Status::done;  // no class may be answered
    const double floor = rule.min_p > 0 ? e.linked(best[0].z) * question.beta + std::log(rule.min_p) : -kInf;
    // Where delta allows it, a bet decides; the decisions of a query share delta. What is better than a class inside is inside.
    const bool may_bet = question.delta > 0 && look.source == &e.preview && !by_budget(e, look);
    const uint64_t key = may_bet ? key_of(e, look, q, question) : 0;
    Scored within = best[0], beyond{-1, -kInf};
    double decided = 0;
    bool proved = true, within_proved = true, beyond_proved = true;
    const auto in_nucleus = [&](const Scored& s, bool* inside) {
        if (rule.top_p >= 1 || s.id == best[0].id) return *inside = true, true;
        if (s.id == within.id || better(s, within)) return proved = proved && within_proved, *inside = true, true;
        if (beyond.id >= 0 && (s.id == beyond.id || better(beyond, s))) return proved = proved && beyond_proved, *inside = false, true;
        const double odds = may_bet ? (decided + 1) * (decided + 2) / question.delta : 0;
        const Side side = side_of_nucleus(e, look, q, question, rule.top_p, s, odds, mix(key + static_cast<uint64_t>(decided)), threads,
                                          known, answer);
        ++decided;
        (side.inside ? within : beyond) = s;
        (side.inside ? within_proved : beyond_proved) = side.proved;
        proved = proved && side.proved;
        return *inside = side.inside, side.known;
    };
    for (int i = 0; i < rule.n; ++i) {
        Keys keys;
        keys.draw = static_cast<uint32_t>(i);
        bool drawn = false;
        size_t seen = 0;
        proved = true;
        for (int64_t m = kFirst; !drawn; m *= 4) {
            std::vector<Keyed> first;
            if (!best_keys(e, look, q, rule, m, threads, known, keys, first, answer)) return Status::dear;
            for (; seen < first.size() && !drawn; ++seen) {
                const Keyed& next = first[seen];
                bool inside = false;
                if (e.linked(next.z) * question.beta < floor && next.id != best[0].id) continue;
                if (!in_nucleus({next.id, next.z}, &inside)) return Status::dear;
                if (inside) draws[i] = {next.id, next.z, next.key, proved}, drawn = true;
            }
            if (!drawn && static_cast<int64_t>(first.size()) < m) return Status::dear;
        }
    }
    return Status::done;
}

}  // namespace headlong
