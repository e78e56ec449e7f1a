// Sampling one query: every class has a Gumbel of its own, fixed by (seed, row, class), and the argmax of
// link(z) / T + gumbel is an exact sample; exact rows are read only where an interval reaches the best exact key.
//
// Filters never sort V classes: the classes are taken in the order of their keys and the first that passes is the
// sample. Whether one is in the nucleus depends on the mass of the classes better than it, which intervals decide.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>

#include "bets.h"
#include "executor.h"
#include "pool.h"

namespace headlong {

double gumbel(const Kernels& kernels, uint64_t seed, uint64_t row, uint32_t draw, int64_t id) {
    uint32_t high[4], low[4];
    kernels.noise(seed, row, draw, id & ~int64_t{3}, 4, high);
    kernels.noise(seed, row, draw | 0x80000000u, id & ~int64_t{3}, 4, low);
    const uint64_t word = static_cast<uint64_t>(high[id & 3]) << 32 | low[id & 3];
    const double e = word >> 63 ? -std::log1p(-((static_cast<double>(~word) + 0.5) * 0x1p-64))
                                : -std::log((static_cast<double>(word) + 0.5) * 0x1p-64);
    return -std::log(e);
}

std::vector<Answer> Executor::sample(const double* hidden, int64_t count, const SampleRule& rule,
                                     const Question& question, bool dense_only, std::vector<Draw>* draws) const {
    draws->assign(count * rule.n, Draw{});
    std::vector<Answer> answers(count);
    std::vector<int64_t> rows(count);
    std::iota(rows.begin(), rows.end(), 0);
    Question asked = question;
    asked.beta = 1 / rule.temperature;
    asked.keep = true;
    const bool by_mass = rule.top_p < 1 || rule.min_p > 0;
    asked.k = rule.top_k > 0 ? std::min(rule.top_k, vocab) : by_mass ? 1 : 0;
    run(
        hidden, rows, asked, dense_only,
        [&](Look& look, int q, int threads, Answer& answer) {
            return resolve_sample(look, q, asked, rule, threads, draws->data() + look.rows[q] * rule.n, answer);
        },
        [&](const std::vector<int64_t>& left) { finish_samples(hidden, left, asked, rule, *draws, answers); },
        answers);
    if (budget > 0 && has_preview && !dense_only)
        for (Draw& draw : *draws) draw.proved = false;
    return answers;
}

Status Executor::resolve_sample(Look& look, int q, const Question& question, const SampleRule& rule, int threads,
                                Draw* draws, Answer& answer) const {
    if (rule.top_k == 0 && (rule.top_p < 1 || rule.min_p > 0))
        return draw_filtered(look, q, question, rule, threads, draws, answer);
    std::vector<Scored> best, scored;
    Interval lse{0, kInf};
    if (rule.top_k > 0 || by_budget(look)) {
        if (!know(look, q, question, threads, best, scored, lse, answer)) return Status::dear;
    }
    if (rule.top_k > 0) {
        const std::vector<Scored> kept = filtered(std::move(best), rule);
        for (int i = 0; i < rule.n; ++i) draws[i] = pick(kept, rule, look.rows[q], i);
        return Status::done;
    }
    for (int i = 0; i < rule.n; ++i) {
        std::vector<Keyed> keys;
        if (!best_keys(look, q, rule, i, 1, threads, scored, keys, answer)) return Status::dear;
        if (!keys.empty()) draws[i] = {keys[0].id, keys[0].z, keys[0].key, true};
    }
    return Status::done;
}

// The k best classes, all that were scored on the way (they leave look.est), and the normaliser. Under a budget the
// estimates of the others are taken for the truth: the distribution is the published method's own.
bool Executor::know(Look& look, int q, const Question& question, int threads, std::vector<Scored>& best,
                    std::vector<Scored>& scored, Interval& lse, Answer& answer) const {
    bool found = true;
    if (by_budget(look)) {
        scored = spend_budget(look, q, question, threads, lse);
        lse.error = 0;
        best.assign(scored.begin(), scored.begin() + std::min<size_t>(question.k, scored.size()));
    } else {
        std::vector<float> est, upper;
        found = best_of(look, q, question.k, threads, best, scored, est, upper, answer);
        if (found) lse = normaliser(look, q, question, scored, est, upper);
        for (const Scored& s : scored) look.est[q * padded + s.id] = -std::numeric_limits<float>::infinity();
    }
    answer.rows += static_cast<int64_t>(scored.size());
    answer.bytes += static_cast<double>(scored.size()) * row_bytes();
    return found;
}

// Keeps of classes sorted by logit what top_p, then min_p leave; top_p = 1 and min_p = 0 keep all.
std::vector<Scored> Executor::filtered(std::vector<Scored> sorted, const SampleRule& rule) const {
    if (sorted.empty()) return sorted;
    const double beta = 1 / rule.temperature, most = linked(sorted[0].z) * beta;
    double total = 0, before = 0;
    for (const Scored& s : sorted) total += std::exp(linked(s.z) * beta - most);
    size_t keep = 0;
    for (; keep < sorted.size(); ++keep) {
        const double f = linked(sorted[keep].z) * beta - most;
        if (keep > 0 && ((rule.top_p < 1 && before >= rule.top_p * total) || (rule.min_p > 0 && f < std::log(rule.min_p))))
            break;
        before += std::exp(f);
    }
    sorted.resize(keep);
    return sorted;
}

Draw Executor::pick(const std::vector<Scored>& kept, const SampleRule& rule, uint64_t row, uint32_t draw) const {
    Draw out;
    for (const Scored& s : kept) {
        const double key = linked(s.z) / rule.temperature + gumbel(*kernels, rule.seed, rule.row0 + row, draw, s.id + rule.class0);
        if (out.id < 0 || key > out.score) out = {s.id, s.z, key, true};
    }
    return out;
}

// The m classes with the largest keys, best first. `scored` are classes known exactly, which look.est no longer holds.
bool Executor::best_keys(const Look& look, int q, const SampleRule& rule, uint32_t draw, int64_t m, int threads,
                         const std::vector<Scored>& scored, std::vector<Keyed>& best, Answer& answer) const {
    struct Candidate {
        int64_t id;
        float upper;
    };
    const float* est = look.est.data() + q * padded;
    const uint64_t row = rule.row0 + look.rows[q];
    const float beta = static_cast<float>(1 / rule.temperature), least = -std::numeric_limits<float>::max();
    const int64_t chunks = (padded + kChunk - 1) / kChunk;
    std::atomic<int64_t> next{0};
    std::atomic<float> threshold{least};
    std::vector<Candidate> all;
    std::mutex joining;
    run_parallel(threads, [&](int) {
        uint32_t words[kChunk + kBlock];
        const int64_t lead = rule.class0 & 3;  // noise() starts at a multiple of four
        float rad[kChunk], low[kChunk], high[kChunk];
        std::vector<float> heap;
        std::vector<Candidate> own;
        for (int64_t c = next++; c < chunks; c = next++) {
            const int64_t first = c * kChunk, n = std::min<int64_t>(kChunk, padded - first);
            kernels->radius(look.prepared.radius[q], first, n, rad);
            kernels->noise(rule.seed, row, draw, first + rule.class0 - lead, n + (lead ? kBlock : 0), words);
            kernels->gumbel_keys(est + first, rad, words + lead, n, link, beta, low, high);
            float tau = threshold.load(std::memory_order_relaxed);
            for (int64_t i = 0; i < n; ++i) {
                if (!(high[i] >= tau) || est[first + i] == -std::numeric_limits<float>::infinity()) continue;
                own.push_back({first + i, high[i]});
                if (!(low[i] > least)) continue;
                if (static_cast<int64_t>(heap.size()) == m) {
                    if (low[i] <= heap.front()) continue;
                    std::pop_heap(heap.begin(), heap.end(), std::greater<float>());
                    heap.back() = low[i];
                } else {
                    heap.push_back(low[i]);
                }
                std::push_heap(heap.begin(), heap.end(), std::greater<float>());
                if (static_cast<int64_t>(heap.size()) == m) tau = std::max(tau, heap.front());
            }
            float now = threshold.load(std::memory_order_relaxed);
            while (tau > now && !threshold.compare_exchange_weak(now, tau, std::memory_order_relaxed)) {
            }
        }
        std::lock_guard<std::mutex> lock(joining);
        all.insert(all.end(), own.begin(), own.end());
    });
    const float tau = threshold.load();
    all.erase(std::remove_if(all.begin(), all.end(), [&](const Candidate& c) { return c.upper < tau; }), all.end());
    if (static_cast<double>(all.size()) > share * static_cast<double>(vocab) + 1024.0 + 8.0 * static_cast<double>(m))
        return false;
    auto by_key = [](const Keyed& a, const Keyed& b) { return a.key > b.key || (a.key == b.key && a.id < b.id); };
    auto take = [&](int64_t id, double z) {
        best.push_back({id, z, linked(z) / rule.temperature + gumbel(*kernels, rule.seed, row, draw, id + rule.class0)});
    };
    best.clear();
    for (const Scored& s : scored) take(s.id, s.z);
    std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.upper > b.upper; });
    for (size_t at = 0; at < all.size();) {
        std::sort(best.begin(), best.end(), by_key);
        if (static_cast<int64_t>(best.size()) > m) best.resize(m);
        const double worst = static_cast<int64_t>(best.size()) < m ? -kInf : best.back().key;
        std::vector<Scored> rows;
        const int64_t grain = std::max<int64_t>(4, m - static_cast<int64_t>(best.size()));
        while (at < all.size() && static_cast<int64_t>(rows.size()) < grain && all[at].upper >= worst)
            rows.push_back({all[at++].id, 0});
        if (rows.empty()) break;
        if (by_budget(look)) {
            for (Scored& s : rows) s.z = est[s.id];
        } else {
            score(&look.hidden[q * dim], rows, threads);
            answer.rows += static_cast<int64_t>(rows.size());
            answer.bytes += static_cast<double>(rows.size()) * row_bytes();
        }
        for (const Scored& s : rows) take(s.id, s.z);
    }
    std::sort(best.begin(), best.end(), by_key);
    if (static_cast<int64_t>(best.size()) > m) best.resize(m);
    return true;
}

Mass Executor::mass_above(const Look& look, int q, double beta, double shift, const Scored& of,
                          const std::vector<Scored>& scored) const {
    const float* est = look.est.data() + q * padded;
    float rad[kChunk], low[kChunk], high[kChunk];
    Mass mass{0, 0};
    for (int64_t first = 0; first < padded; first += kChunk) {
        const int64_t n = std::min<int64_t>(kChunk, padded - first);
        kernels->radius(look.prepared.radius[q], first, n, rad);
        kernels->interval_exps(est + first, rad, n, link, static_cast<float>(beta), static_cast<float>(shift), low, high);
        if (of.id >= first && of.id < first + n) low[of.id - first] = high[of.id - first] = 0;
        for (int64_t i = 0; i < n; ++i) {
            const float e = est[first + i];
            mass.low += e - rad[i] > of.z ? low[i] : 0.f;
            mass.high += e + rad[i] >= of.z ? high[i] : 0.f;
        }
    }
    const double slop = std::expm1(float_error(shift, beta)) + 0x1p-18;
    mass.low *= 1 - slop;
    mass.high *= 1 + slop;
    for (const Scored& s : scored) {
        if (s.id == of.id || !better(s, of)) continue;
        const double term = std::exp(linked(s.z) * beta - shift);
        mass.low += term;
        mass.high += term;
    }
    return mass;
}

// top_p and min_p over all classes.
Status Executor::draw_filtered(Look& look, int q, const Question& question, const SampleRule& rule, int threads,
                               Draw* draws, Answer& answer) const {
    std::vector<Scored> best, scored;
    Interval lse{0, kInf};
    if (!know(look, q, question, threads, best, scored, lse, answer)) return Status::dear;
    if (best.empty()) return Status::done;  // no class may be answered
    const double shift = linked(best[0].z) * question.beta, floor = rule.min_p > 0 ? shift + std::log(rule.min_p) : -kInf;
    // Tighter and tighter normalisers, for classes at the boundary of the nucleus; then the row is dear.
    const double steps[] = {0.03, 0.003};
    size_t step = 0;
    // Where delta allows it, a bet decides; the decisions of a query share delta. What is better than a class inside is inside.
    const bool may_bet = question.delta > 0 && look.source == &preview && !by_budget(look);
    const uint64_t key = may_bet ? key_of(look, q, question) : 0;
    Scored within = best[0], beyond{-1, -kInf};
    double bets = 0;
    bool proved = true, within_proved = true, beyond_proved = true;
    auto in_nucleus = [&](const Scored& s, bool* inside) {
        if (rule.top_p >= 1 || s.id == best[0].id) return *inside = true, true;
        if (s.id == within.id || better(s, within)) return proved = proved && within_proved, *inside = true, true;
        if (beyond.id >= 0 && (s.id == beyond.id || better(beyond, s))) return proved = proved && beyond_proved, *inside = false, true;
        if (may_bet) {
            const double odds = (bets + 1) * (bets + 2) / question.delta;
            const Side side = side_of_nucleus(look, q, question, rule.top_p, s, scored, odds, mix(key + static_cast<uint64_t>(bets)),
                                              threads, answer);
            ++bets;
            if (side.known) {
                (side.inside ? within : beyond) = s;
                (side.inside ? within_proved : beyond_proved) = side.proved;
                proved = proved && side.proved;
                return *inside = side.inside, true;
            }
        }
        for (;;) {
            const Mass above = mass_above(look, q, question.beta, shift, s, scored);
            if (above.high < rule.top_p * std::exp(lse.value - lse.error - shift)) return *inside = true, true;
            if (above.low >= rule.top_p * std::exp(lse.value + lse.error - shift)) return *inside = false, true;
            if (by_budget(look)) return *inside = above.low < rule.top_p * std::exp(lse.value - shift), true;
            if (step == 2) return false;
            Question closer = question;
            closer.eps = steps[step++];
            closer.alone = true;  // most nuclei are decided before
            const size_t had = scored.size();
            const Status status = lse.error <= closer.eps ? Status::done : refine(look, q, closer, threads, scored, lse, answer);
            answer.rows += static_cast<int64_t>(scored.size() - had);
            answer.bytes += static_cast<double>(scored.size() - had) * row_bytes();
            if (status != Status::done) return false;
        }
    };
    for (int i = 0; i < rule.n; ++i) {
        bool drawn = false;
        size_t seen = 0;
        proved = true;
        for (int64_t m = 4; !drawn; m *= 4) {
            std::vector<Keyed> keys;
            if (!best_keys(look, q, rule, i, m, threads, scored, keys, answer)) return Status::dear;
            for (; seen < keys.size() && !drawn; ++seen) {
                const Keyed& next = keys[seen];
                bool inside = false;
                if (linked(next.z) * question.beta < floor && next.id != best[0].id) continue;
                if (!in_nucleus({next.id, next.z}, &inside)) return Status::dear;
                if (inside) draws[i] = {next.id, next.z, next.key, proved}, drawn = true;
            }
            if (!drawn && static_cast<int64_t>(keys.size()) < m) return Status::dear;
        }
    }
    return Status::done;
}

}  // namespace headlong
