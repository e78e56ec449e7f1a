// Samples of queries whose every logit was computed: no more classes are sorted than filters ask for, and the noise of a class is looked
// at in full only where its high word lets it win.
#include <algorithm>
#include <cmath>

#include "executor/verbs.h"
#include "runtime/pool.h"
#include "runtime/shared_work.h"
#include "sampling/philox.h"

namespace headlong {
namespace {

constexpr int64_t kHeldBytes = int64_t{1} << 25;  // of logits at once

constexpr size_t kFirst = 1024;  // classes that are sorted at first; eight times as many where a nucleus goes beyond them

// The classes that top_k, then top_p and min_p keep, in the order of their ids.
template <typename Order>
std::vector<Scored> kept_of(const Executor& e, const double* z, const SampleRule& rule, const Order& order) {
    std::vector<Scored> all;
    all.reserve(e.vocab);
    for (int64_t id = 0; id < e.vocab; ++id)
        if (z[id] > -kInf) all.push_back({id, z[id]});
    const bool some = rule.top_k > 0 && rule.top_k < static_cast<int64_t>(all.size()), by_mass = rule.top_p < 1 || rule.min_p > 0;
    if (all.empty() || (!some && !by_mass)) return all;
    std::vector<Scored> sorted = all;
    const size_t most = some ? static_cast<size_t>(rule.top_k) : all.size();
    if (some) std::nth_element(sorted.begin(), sorted.begin() + static_cast<int64_t>(most), sorted.end(), order);
    sorted.resize(most);
    const double beta = rule.beta(), top = e.linked(std::min_element(sorted.begin(), sorted.end(), order)->z) * beta;
    double total = 0;
    for (const Scored& s : sorted) total += by_mass ? std::exp(e.linked(s.z) * beta - top) : 0;
    std::vector<Scored> kept;
    for (size_t many = std::min(kFirst, most);; many = std::min(8 * many, most)) {
        std::partial_sort(sorted.begin(), sorted.begin() + static_cast<int64_t>(many), sorted.end(), order);
        kept = filtered(e, {sorted.begin(), sorted.begin() + static_cast<int64_t>(many)}, rule, total);
        if (kept.size() < many || many == most) break;
    }
    const Scored last = kept.back();
    all.erase(std::remove_if(all.begin(), all.end(), [&](const Scored& s) { return order(last, s); }), all.end());
    return all;
}

// The largest link(z) / T + gumbel of classes whose ids ascend.
Draw best_of_all(const Executor& e, const std::vector<Scored>& kept, const SampleRule& rule, uint64_t row, uint32_t draw) {
    Draw out;
    uint32_t words[kBlock];
    int64_t block = -1;
    for (const Scored& s : kept) {
        const int64_t id = rule.name(s.id);
        if (id / kBlock != block) {
            block = id / kBlock;
            e.kernels->noise(rule.seed, row, draw, block * kBlock, kBlock, words);
        }
        const double f = e.linked(s.z) / rule.temperature;
        if (out.id >= 0 && !may_reach(f, words[id % kBlock], out.score)) continue;
        const double key = f + gumbel(rule.seed, row, draw, id);
        if (out.id < 0 || key > out.score) out = {s.id, s.z, key, true};
    }
    return out;
}

}  // namespace

void draw_from_all(const Executor& e, const double* z, const double* hidden, const SampleRule& rule, double eps, Draw* draws, Answer& answer) {
    // No row says which of two close estimates is larger.
    const std::vector<Scored> kept = hidden == nullptr ? kept_of(e, z, rule, better) : kept_of(e, z, rule, TrueOrder(*e.kernels, e, hidden));
    for (int i = 0; i < rule.n; ++i) draws[i] = best_of_all(e, kept, rule, rule.row0, static_cast<uint32_t>(i));
    if (!std::isfinite(eps)) return;
    const double beta = 1 / rule.temperature;
    double top = -kInf, sum = 0, own = 0;
    for (int64_t id = 0; id < e.vocab; ++id)
        if (z[id] > -kInf) top = std::max(top, e.linked(z[id]) * beta);
    for (int64_t id = 0; id < e.vocab; ++id)
        if (z[id] > -kInf) sum += std::exp(e.linked(z[id]) * beta - top);
    for (const Scored& one : kept) own += std::exp(e.linked(one.z) * beta - top);
    answer.lse = top + std::log(sum);
    answer.kept = std::min(0.0, std::log(own / sum));
}

// Logits are held for as many queries at once as memory is worth.
void finish_samples(const Executor& e, const double* hidden, const std::vector<int64_t>& rows, const Question& question,
                              const std::vector<SampleRule>& rules, std::vector<Draw>& draws, std::vector<Answer>& answers) {
    const size_t at_once = std::max<int64_t>(1, kHeldBytes / (8 * e.vocab));
    for (size_t start = 0; start < rows.size(); start += at_once) {
        const std::vector<int64_t> some(rows.begin() + start, rows.begin() + std::min(rows.size(), start + at_once));
        const int n = static_cast<int>(some.size());
        Scratch<double> logits(some.size() * e.vocab);
        every_logit(e, hidden, some, question, [&](int64_t, int q, int64_t first, int64_t count, const double* z) {
            std::copy_n(z, count, logits.data() + q * e.vocab + first);
        });
        Turns<int> next;
        run_parallel(std::min(question.threads, n), [&](int) {
            for (int q = next++; q < n; q = next++) {
                const int64_t row = some[q];
                const SampleRule& rule = rules[row];
                Answer& answer = answers[row];
                draw_from_all(e, logits.data() + q * e.vocab, hidden + row * e.dim, rule, question.eps, draws.data() + row * rule.n, answer);
                answer.error = exact_error(e, hidden + row * e.dim, 1 / rule.temperature, answer.lse);
                answer.dense = true;
                answer.rows += e.vocab;
                answer.bytes += static_cast<double>(e.vocab) * e.row_bytes() / n;
            }
        });
    }
}

}  // namespace headlong
