// Draws of all classes from every row: each class has a Gumbel of its own, fixed by (seed, row, class), and the argmax of link(z) / T + gumbel is
// an exact sample. Filters go by the best classes instead: sampling/filters.cpp.
#include <algorithm>
#include <cmath>

#include "executor/full_scan.h"
#include "executor/verbs.h"
#include "sampling/collect_keys.h"
#include "sampling/philox.h"

namespace headlong {
namespace {

// What a scan of the rows collects for some queries from row `first` of the batch on.
struct RowKeys {
    std::vector<std::atomic<bool>> undecided;
    KeyCollector keys;

    RowKeys(const Executor& e, const double* hidden, int64_t first, int64_t n, const SampleRule* rules, const Question& question)
        : undecided(n), keys(e, rules, n, question.threads, true) {
        std::vector<float> radius(n);
        for (int64_t q = 0; q < n; ++q) {
            radius[q] = radius_of_rows(e, hidden + q * e.dim);
            undecided[q].store(!(radius[q] < std::numeric_limits<float>::infinity()));
        }
        const Scratch<float> x = queries_of(hidden, n, e.dim);
        scan_rows(e, {e.weight, e.kind, e.dim, e.base}, x.data(), static_cast<int>(n), question.threads, [&](int thread, int64_t, int64_t start, int64_t many, float* est) {
            alignas(64) float rad[kChunk];
            for (int64_t q = 0; q < n; ++q) {
                float* own = est + q * kChunk;
                bool finite = true;
                const float top = largest_estimate(e, question, first + q, start, many, own, &finite);
                if (!finite || !(e.linked(top) / rules[q].temperature < kMostShift)) undecided[q].store(true);
                if (undecided[q].load(std::memory_order_relaxed) || top == -std::numeric_limits<float>::infinity()) continue;
                radii_of_rows(e, radius[q], start, many, rad);
                keys.take(keys.found(thread, q), q, start, many, own, rad, 0, keys.draws(), [](int64_t) { return true; });
            }
        });
    }
};

}  // namespace

double gumbel(uint64_t seed, uint64_t row, uint32_t draw, int64_t id) {
    const uint64_t word = static_cast<uint64_t>(philox_word(seed, row, draw, id)) << 32 | philox_word(seed, row, draw | 0x80000000u, id);
    const double e = word >> 63 ? -std::log1p(-((static_cast<double>(~word) + 0.5) * 0x1p-64))
                                : -std::log((static_cast<double>(word) + 0.5) * 0x1p-64);
    return -std::log(e);
}

// Draws of all classes, each row by a rule of its own.
std::vector<Answer> sample(const Executor& e, const double* hidden, int64_t count, const std::vector<SampleRule>& rules, const Question& question, std::vector<Draw>* draws) {
    const int each = rules.front().n;
    draws->assign(count * each, Draw{});
    if (e.preview.budget > 0) return sample_preview(e, hidden, count, rules, question, draws);
    std::vector<Answer> answers(count);
    const std::vector<int64_t> left = in_groups(
        count, kScanQueries, question.threads,
        [&](int64_t first, int64_t n) { return RowKeys(e, hidden + first * e.dim, first, n, &rules[first], question); },
        [&](RowKeys& found, int64_t row, int64_t q, int threads) {
            Answer& answer = answers[row];
            answer.dense = true;
            answer.bytes = static_cast<double>(e.vocab) * e.row_bytes() / static_cast<double>(found.undecided.size());
            const auto score_rows = [&](std::vector<Scored>& rows) {
                score(e, hidden + row * e.dim, rows, threads);
                answer.rows += static_cast<int64_t>(rows.size());
                answer.bytes += static_cast<double>(rows.size()) * e.row_bytes();
            };
            const auto most = static_cast<int64_t>(kMostScored * static_cast<double>(e.vocab)) + 1024;
            return !found.undecided[q].load() && found.keys.largest_of_all(q, most, score_rows, draws->data() + row * each);
        });
    if (!left.empty()) finish_samples(e, hidden, left, question, rules, *draws, answers);
    return answers;
}

}  // namespace headlong
