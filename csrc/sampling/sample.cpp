// Sampling one query: every class has a Gumbel of its own, fixed by (seed, row, class), and the argmax of
// link(z) / T + gumbel is an exact sample. The classes whose keys may be the best are scored, their worst key is the threshold,
// and what can still reach it is scored.
// top_k, top_p and min_p are in sampling/filters.cpp.
#include <algorithm>
#include <numeric>

#include "executor/verbs.h"

namespace headlong {

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
    over_groups(
        e, hidden, rows, asked, dense_only,
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
    if ((rule.top_k > 0 || by_budget(e, look)) && !find_best(e, look, q, question, threads, best, known, answer)) return Status::finish_densely;
    if (rule.top_k > 0) {
        const std::vector<Scored> kept = filtered(e, std::move(best), rule);
        for (int i = 0; i < rule.n; ++i) draws[i] = pick(e, kept, rule, look.rows[q], i);
        return Status::done;
    }
    for (int i = 0; i < rule.n; ++i) {
        std::vector<Keyed> first;
        Keys keys;
        keys.draw = static_cast<uint32_t>(i);
        if (!best_keys(e, look, q, rule, 1, threads, known, keys, first, answer)) return Status::finish_densely;
        if (!first.empty()) draws[i] = {first[0].id, first[0].z, first[0].key, true};
    }
    return Status::done;
}

// The radii of the look, and no class scored.
void start_knowing(const Executor& e, Look& look, int q, int threads, Known& known) {
    if (!known.rad.empty()) return;
    known.rad = look.rad.empty() ? radii(e, look, q, threads) : std::move(look.rad);
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
        const bool drawn = !known.rad.empty();
        found = best_of(e, look, q, question.k, threads, best, known.scored, est, upper, drawn);
        for (const Scored& s : known.scored) {
            look.est[q * e.padded + s.id] = -std::numeric_limits<float>::infinity();
            if (drawn) known.rad[s.id] = 0;
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

}  // namespace headlong
