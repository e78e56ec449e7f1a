// Samples of queries whose every logit was computed: what filters keep is found by selection, not by sorting all classes, and the
// noise of a class is looked at in full only where its high word lets it win.
#include <algorithm>

#include "executor/verbs.h"
#include "runtime/pool.h"
#include "runtime/shared_work.h"

namespace headlong {
namespace {

constexpr int64_t kHeldBytes = int64_t{1} << 25;  // of logits at once

// The classes that top_k, then top_p and min_p keep, in no order.
std::vector<Scored> kept_of(const Executor& e, const double* z, const SampleRule& rule) {
    std::vector<Scored> all;
    all.reserve(e.vocab);
    for (int64_t id = 0; id < e.vocab; ++id)
        if (z[id] > -kInf) all.push_back({id, z[id]});
    if (rule.top_k > 0 && rule.top_k < static_cast<int64_t>(all.size())) {
        std::nth_element(all.begin(), all.begin() + rule.top_k, all.end(), better);
        all.resize(rule.top_k);
    }
    if ((rule.top_p >= 1 && !(rule.min_p > 0)) || all.empty()) return all;
    const double beta = 1 / rule.temperature, most = e.linked(std::min_element(all.begin(), all.end(), better)->z) * beta;
    const double floor = rule.min_p > 0 ? std::log(rule.min_p) : -kInf;
    std::vector<Massive> left;
    double total = 0;
    for (const Scored& s : all) {
        const double f = e.linked(s.z) * beta - most, mass = std::exp(f);
        total += mass;
        if (f >= floor) left.push_back({s.id, s.z, mass});
    }
    left.resize(rule.top_p < 1 ? select_nucleus(left, rule.top_p * total) : left.size());
    all.clear();
    for (const Massive& m : left) all.push_back({m.id, m.z});
    return all;
}

// The largest link(z) / T + gumbel of classes whose ids ascend. A class whose noise is below what would win is passed by on its
// high word alone; `least` is what that word has to be, less what rounding may have added to it.
Draw best_of_all(const Executor& e, const std::vector<Scored>& kept, const SampleRule& rule, uint64_t row, uint32_t draw) {
    Draw out;
    uint32_t words[kBlock];
    int64_t block = -1;
    double least = 0, f = 0, last = std::numeric_limits<double>::quiet_NaN();
    for (const Scored& s : kept) {
        const int64_t id = s.id + rule.class0;
        if (id / kBlock != block) {
            block = id / kBlock;
            e.kernels->noise(rule.seed, row, draw, block * kBlock, kBlock, words);
        }
        if (s.z != last) {
            last = s.z;
            f = e.linked(s.z) / rule.temperature;
            least = out.id < 0 ? 0 : 0x1p32 * std::exp(-std::exp(f - out.score)) * (1 - 0x1p-40) - 2;
        }
        if (static_cast<double>(words[id % kBlock]) < least) continue;
        const double key = f + gumbel(rule.seed, row, draw, id);
        if (out.id >= 0 && !(key > out.score)) continue;
        out = {s.id, s.z, key, true};
        last = std::numeric_limits<double>::quiet_NaN();  // what is to be beaten has risen
    }
    return out;
}

}  // namespace

// Logits are held for as many queries at once as memory is worth.
void finish_samples(const Executor& e, const double* hidden, const std::vector<int64_t>& rows, const Question& question,
                              const SampleRule& rule, std::vector<Draw>& draws, std::vector<Answer>& answers) {
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
                std::vector<Scored> kept = kept_of(e, logits.data() + q * e.vocab, rule);
                std::sort(kept.begin(), kept.end(), [](const Scored& a, const Scored& b) { return a.id < b.id; });
                for (int i = 0; i < rule.n; ++i)
                    draws[some[q] * rule.n + i] = best_of_all(e, kept, rule, rule.row0 + some[q], static_cast<uint32_t>(i));
                answers[some[q]].rows += e.vocab;
                answers[some[q]].bytes += static_cast<double>(e.vocab) * e.row_bytes() / n;
            }
        });
    }
}

}  // namespace headlong
