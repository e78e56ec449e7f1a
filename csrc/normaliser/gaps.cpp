// The gaps of a query's classes: how wide each is, and the rows of the widest, which are scored; the others are drawn from
// (normaliser/by_bet.cpp). Which are wide enough is normaliser/widest_gaps.cpp.
#include <algorithm>
#include <numeric>

#include "executor/query_codes.h"
#include "executor/verbs.h"
#include "kernels/any_rows.h"
#include "runtime/shared_work.h"

namespace headlong {

// Rows of the normaliser in float32, where what that loses is little of eps; returns it, and 0 where they are scored in float64.
double allow_float32(const Executor& e, const double* hidden, const Question& question, Weighed& w) {
    const double square = square_sum(hidden, 0, e.dim);
    const double steepest = std::max(e.link.form == LinkForm::softcap ? 1.0 : static_cast<double>(e.link_a), 1.0) * question.beta;
    const double lost = float_unit(e.dim) * e.most_norm * std::sqrt(square) * steepest;
    if (e.link.form == LinkForm::table || !(lost < 0.05 * question.eps) || !(square < 1e30)) return 0;
    w.floats.assign(hidden, hidden + e.dim);
    return lost;
}

// As score, in float32 where that was allowed.
void score_near(const Executor& e, const double* hidden, const Weighed& w, std::vector<Scored>& rows, int threads) {
    if (w.floats.empty()) return score(e, hidden, rows, threads);
    constexpr int64_t kGrain = 32;
    const int64_t n = static_cast<int64_t>(rows.size());
    Turns<int64_t> next;
    run_parallel(n * e.dim < 32768 ? 1 : threads, [&](int) {
        int32_t ids[kGrain];
        float z[kGrain];
        for (int64_t start = next.fetch_add(kGrain); start < n; start = next.fetch_add(kGrain)) {
            const int64_t count = std::min(kGrain, n - start);
            for (int64_t i = 0; i < count; ++i) ids[i] = static_cast<int32_t>(rows[start + i].id);
            dot_floats(*e.kernels, e.weight, e.kind, e.dim, ids, count, w.floats.data(), z);
            for (int64_t i = 0; i < count; ++i) rows[start + i].z = e.exact(z[i], rows[start + i].id);
        }
    });
}

// The middles and gaps of all classes, and the sums of the middles chunk by chunk.
void weigh(const Executor& e, const Look& look, int q, double beta, int threads, Weighed& w) {
    const float* est = look.est.data() + q * e.padded;
    const int64_t chunks = (e.padded + kChunk - 1) / kChunk;
    w.middle.resize(e.padded);
    w.gap.resize(e.padded);
    std::vector<double> sums(chunks);
    over_chunks(chunks, threads, [&](int, int64_t c) {
        float rad[kChunk];
        const int64_t first = c * kChunk, n = std::min<int64_t>(kChunk, e.padded - first);
        e.kernels->radius(look.prepared.radius[q], first, n, rad);
        sums[c] = e.kernels->gaps(est + first, rad, n, e.link, static_cast<float>(beta), w.shift, w.slop, &w.middle[first],
                                &w.gap[first]);
    });
    w.sum = std::accumulate(sums.begin(), sums.end(), 0.0);
}

// Scores the classes with gaps from `edge` on, unless they are more than `most`. `before` gets the sums of the other gaps, run by run.
bool score_widest(const Executor& e, Look& look, int q, float edge, double most, double beta, int threads, Weighed& w,
                  Scratch<double>& before, double* exact, std::vector<Scored>& scored) {
    std::vector<std::vector<Scored>> wide_ids(threads);
    over_chunks((e.padded + kChunk - 1) / kChunk, threads, [&](int t, int64_t c) {
        const int64_t first = c * kChunk, n = std::min<int64_t>(kChunk, e.padded - first);
        int32_t ids[kChunk + kRun];
        const int64_t came = e.kernels->split(&w.gap[first], n, edge, static_cast<int32_t>(first), ids, &before[first / kRun + 1]);
        for (int64_t i = 0; i < came; ++i) wide_ids[t].push_back({ids[i], 0});
    });
    std::vector<Scored> wide = joined(wide_ids);
    if (static_cast<double>(wide.size()) > most) return false;
    score_near(e, &look.hidden[q * e.dim], w, wide, threads);
    for (const Scored& s : wide) {
        *exact += std::exp(e.linked(s.z) * beta - w.shift);
        w.sum -= w.middle[s.id];
        look.est[q * e.padded + s.id] = -std::numeric_limits<float>::infinity();
    }
    scored.insert(scored.end(), wide.begin(), wide.end());
    before[0] = 0;
    for (int64_t r = 0; r < e.padded / kRun; ++r) before[r + 1] += before[r];
    w.sum = std::max(w.sum, 0.0);
    return true;
}

}  // namespace headlong
