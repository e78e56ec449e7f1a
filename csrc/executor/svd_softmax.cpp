// SVD-softmax as published: a number of rows instead of a proof.
#include <algorithm>

#include "executor/verbs.h"

namespace headlong {

// The `budget` best estimates (at least k) are scored and leave look.est; the others keep their
// preview in the normaliser.
std::vector<Scored> spend_budget(const Executor& e, Look& look, int q, const Question& question, int threads, Interval& lse) {
    float* est = look.est.data() + q * e.padded;
    const float none = -std::numeric_limits<float>::infinity();
    std::vector<float> order(est, est + e.vocab);
    const int64_t n = std::min(std::max(e.budget, question.k), e.vocab);
    std::nth_element(order.begin(), order.begin() + (n - 1), order.end(), std::greater<float>());
    std::vector<Scored> scored;
    scored.reserve(n);
    for (int64_t pass = 0; pass < 2; ++pass)  // above the n-th largest first, then its equals, smaller ids first
        for (int64_t i = 0; i < e.vocab && static_cast<int64_t>(scored.size()) < n; ++i)
            if (est[i] > none && (pass == 0 ? est[i] > order[n - 1] : est[i] == order[n - 1])) scored.push_back({i, 0});
    score(e, &look.hidden[q * e.dim], scored, threads);
    double shift = -kInf, sum = 0;
    for (const Scored& s : scored) {
        shift = std::max(shift, e.linked(s.z) * question.beta);
        est[s.id] = none;
    }
    for (const Scored& s : scored) sum += std::exp(e.linked(s.z) * question.beta - shift);
    bool finite = true;
    const float top = e.kernels->largest(est, e.padded, &finite), rest_shift = static_cast<float>(e.linked(top) * question.beta);
    double rest = 0;
    if (top > none && float_error(e, rest_shift, question.beta) < 1e-2) {
        Kernels::Sums sums{0, 0, 0, 0};
        const std::vector<float> rad(kChunk, 0.f);
        for (int64_t c = 0; c < e.padded; c += kChunk)
            e.kernels->interval_sums(est + c, rad.data(), std::min<int64_t>(kChunk, e.padded - c), 0.f, e.link,
                                   static_cast<float>(question.beta), rest_shift, &sums);
        rest = sums.centre;
    } else if (top > none) {  // logits so large that float32 has no digits left for their differences
        for (int64_t i = 0; i < e.vocab; ++i)
            if (est[i] > none) rest += std::exp(e.linked(est[i]) * question.beta - rest_shift);
    }
    const double most = std::max(shift, rest > 0 ? rest_shift + std::log(rest) : -kInf);
    if (most > -kInf)
        shift = most + std::log((sum > 0 ? sum * std::exp(shift - most) : 0) +
                                (rest > 0 ? std::exp(rest_shift + std::log(rest) - most) : 0));
    lse = {shift, kInf};
    std::sort(scored.begin(), scored.end(), better);
    return scored;
}

Status resolve_budget(const Executor& e, Look& look, int q, const Question& question, int threads, Answer& answer) {
    Interval lse{0, kInf};
    answer.best = spend_budget(e, look, q, question, threads, lse);
    answer.rows = static_cast<int64_t>(answer.best.size());
    answer.bytes += static_cast<double>(answer.best.size()) * e.row_bytes();
    if (static_cast<int64_t>(answer.best.size()) > question.k) answer.best.resize(question.k);
    answer.lse = lse.value;
    answer.error = lse.error;
    answer.proved = false;
    return Status::done;
}

}  // namespace headlong
