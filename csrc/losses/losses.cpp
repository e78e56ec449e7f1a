// Rows of logits shared out over threads, always the same rows to the same thread: sums do not depend on who was first.
#include "losses/losses.h"

#include <algorithm>

#include "runtime/pool.h"

namespace headlong {

namespace {

template <typename Work>
void share_rows(int64_t rows, int threads, const Work& work) {
    const int n = static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(threads, rows)));
    run_parallel(n, [&](int t) {
        const int64_t first = rows * t / n, last = rows * (t + 1) / n;
        if (first < last) work(t, first, last);
    });
}

}  // namespace

void link_losses(const Kernels& kernels, const float* logits, int64_t rows, int64_t vocab, const int64_t* target,
                 const Link& link, int threads, double* lse, double* at_target) {
    share_rows(rows, threads, [&](int, int64_t first, int64_t last) {
        for (int64_t r = first; r < last; ++r) {
            check_in();
            lse[r] = kernels.link_lse(logits + r * vocab, vocab, link);
            at_target[r] = kernels.link_at(logits[r * vocab + target[r]], link);
        }
    });
}

std::vector<double> link_gradients(const Kernels& kernels, float* logits, int64_t rows, int64_t vocab,
                                   const int64_t* target, const double* lse, const float* scale, const Link& link,
                                   int threads) {
    const size_t cells = link.form == LinkForm::table ? static_cast<size_t>(link.cells) + 2 : 1;
    std::vector<std::vector<double>> each(std::max(1, threads));
    share_rows(rows, threads, [&](int t, int64_t first, int64_t last) {
        each[t].assign(2 * cells, 0.0);
        double* const sums[2] = {each[t].data(), each[t].data() + cells};
        for (int64_t r = first; r < last; ++r) {
            check_in();
            kernels.link_gradient(logits + r * vocab, vocab, link, lse[r], target[r], scale[r], sums);
        }
    });
    std::vector<double> all(2 * cells, 0.0);
    for (const std::vector<double>& one : each)
        for (size_t i = 0; i < one.size(); ++i) all[i] += one[i];
    return all;
}

}  // namespace headlong
