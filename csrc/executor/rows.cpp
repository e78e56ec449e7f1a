// Rows that are scored one by one, in float64; and what float arithmetic loses.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "executor/verbs.h"
#include "kernels/any_rows.h"
#include "runtime/shared_work.h"

namespace headlong {

double float_error(const Executor& e, double shift, double beta) {
    const double own = e.link.form == LinkForm::softcap ? e.link_a * beta * 0x1p-19 : e.link.form == LinkForm::table ? (e.link.slop + e.link_b) * beta : 0;
    return (std::fabs(shift) + 64) * (e.link.form == LinkForm::table ? 0x1p-21 : 0x1p-22) + own;
}

double dot_error(const Executor& e, const double* hidden) {
    const double steepest = e.link.form == LinkForm::softcap ? 1 : std::max(e.link_a, 1.0), own = e.link.form == LinkForm::table ? e.link_b : 0;
    return static_cast<double>(e.dim + 8) * 0x1p-53 * (e.most_norm * std::sqrt(std::inner_product(hidden, hidden + e.dim, hidden, 0.0)) + 1) * steepest + own;
}

void score(const Executor& e, const double* hidden, std::vector<Scored>& rows, int threads) {
    constexpr int64_t most = 32;
    const int64_t n = static_cast<int64_t>(rows.size()), grain = n < 256 ? 8 : most;  // rows that a thread takes at once
    Turns<int64_t> next;
    run_parallel(n * e.dim < 16384 ? 1 : threads, [&](int) {
        int64_t ids[most];
        double z[most];
        for (int64_t start = next.fetch_add(grain); start < n; start = next.fetch_add(grain)) {
            const int64_t count = std::min(grain, n - start);
            for (int64_t i = 0; i < count; ++i) ids[i] = rows[start + i].id;
            dot_rows(*e.kernels, e.weight, e.kind, e.dim, ids, count, hidden, z);
            for (int64_t i = 0; i < count; ++i) rows[start + i].z = e.exact(z[i], rows[start + i].id);
        }
    });
}

void logits(const Executor& e, const double* hidden, int64_t count, const int64_t* ids, int64_t m, int threads, double* out) {
    Turns<int64_t> next;
    const int64_t grain = std::max<int64_t>(1, 256 / std::max<int64_t>(1, m));
    run_parallel(count * m * e.dim < 65536 ? 1 : threads, [&](int) {
        for (int64_t start = next.fetch_add(grain); start < count; start = next.fetch_add(grain))
            for (int64_t b = start; b < std::min(count, start + grain); ++b) {
                double* z = out + b * m;
                dot_rows(*e.kernels, e.weight, e.kind, e.dim, ids + b * m, m, hidden + b * e.dim, z);
                for (int64_t i = 0; e.bias != nullptr && i < m; ++i) z[i] += e.bias[ids[b * m + i]];
                if (m == 1) continue;
                std::vector<int64_t> falling(m);
                std::iota(falling.begin(), falling.end(), 0);
                std::sort(falling.begin(), falling.end(), [&](int64_t i, int64_t j) { return z[i] > z[j]; });
                TrueOrder(*e.kernels, e, hidden + b * e.dim).settle(m, [&](int64_t i) { return ids[b * m + falling[i]]; }, [&](int64_t i) -> double& { return z[falling[i]]; });
            }
    });
}

}  // namespace headlong
