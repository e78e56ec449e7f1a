#include "node_sums/median_order.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "runtime/pool.h"
#include "runtime/shared_work.h"

namespace headlong {
namespace {

constexpr int kApart = 4;  // levels after which threads take nodes of their own

using Key = std::pair<float, int32_t>;  // a row's entry, and where the row is

struct Task {
    int64_t vocab, dim;
    std::vector<float> rows;  // in the order so far
    std::vector<int32_t> ids;
    std::vector<Key> keys;
    std::vector<float> old_rows;
    std::vector<int32_t> old_ids;
};

int64_t widest(const Task& t, int64_t start, int64_t stop) {
    int64_t best = 0;
    double most = -1;
    for (int64_t j = 0; j < t.dim; ++j) {
        float lo = std::numeric_limits<float>::infinity(), hi = -lo;
        for (int64_t i = start; i < stop; ++i) {
            lo = std::min(lo, t.rows[i * t.dim + j]);
            hi = std::max(hi, t.rows[i * t.dim + j]);
        }
        const double width = static_cast<double>(hi) - lo;
        if (width > most) most = width, best = j;
    }
    return best;
}

// One node: the rows with smaller entries come first; both halves keep the order that they had, which is that of ids.
void divide(Task& t, int64_t start, int64_t middle, int64_t stop) {
    const int64_t dim = t.dim, j = widest(t, start, stop);
    for (int64_t i = start; i < stop; ++i) t.keys[i] = {t.rows[i * dim + j], static_cast<int32_t>(i)};
    std::nth_element(t.keys.begin() + start, t.keys.begin() + middle, t.keys.begin() + stop);
    const Key first = t.keys[middle];  // of the second half
    std::copy_n(t.rows.data() + start * dim, (stop - start) * dim, t.old_rows.data() + start * dim);
    std::copy_n(t.ids.data() + start, stop - start, t.old_ids.data() + start);
    int64_t low = start, high = middle;
    for (int64_t i = start; i < stop; ++i) {
        const float* row = t.old_rows.data() + i * dim;
        int64_t& to = Key{row[j], static_cast<int32_t>(i)} < first ? low : high;
        std::copy_n(row, dim, t.rows.data() + to * dim);
        t.ids[to++] = t.old_ids[i];
    }
}

void divide_below(Task& t, int level, int64_t node, int last) {
    if (level == last) return;
    check_in();
    divide(t, node_start(t.vocab, level, node), node_start(t.vocab, level + 1, 2 * node + 1), node_start(t.vocab, level, node + 1));
    divide_below(t, level + 1, 2 * node, last);
    divide_below(t, level + 1, 2 * node + 1, last);
}

}  // namespace

std::vector<int32_t> median_order(const float* rows, int64_t vocab, int64_t dim, int levels, int threads) {
    Task t{vocab, dim, std::vector<float>(rows, rows + vocab * dim), std::vector<int32_t>(vocab), std::vector<Key>(vocab),
           std::vector<float>(vocab * dim), std::vector<int32_t>(vocab)};
    std::iota(t.ids.begin(), t.ids.end(), 0);
    const int first = std::min(levels, kApart);
    for (int level = 0; level < first; ++level) {  // few large nodes, then many small ones
        Turns<int64_t> next;
        run_parallel(threads, [&](int) {
            for (int64_t node = next++; node < int64_t{1} << level; node = next++) divide_below(t, level, node, level + 1);
        });
    }
    Turns<int64_t> next;
    run_parallel(threads, [&](int) {
        for (int64_t node = next++; node < int64_t{1} << first; node = next++) divide_below(t, first, node, levels);
    });
    return std::move(t.ids);
}

}  // namespace headlong
