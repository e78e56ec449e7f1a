// SVD-softmax as published: a number of rows instead of a proof.
#include <algorithm>
#include <cmath>

#include "executor/full_scan.h"
#include "executor/verbs.h"

namespace headlong {
namespace {

// Estimates of all classes [query][padded] by the preview for some queries from row `first` on; false where one is no number.
struct AllEstimates {
    Scratch<float> est;
    std::vector<uint8_t> usable;
};
AllEstimates look(const Executor& e, const double* hidden, int64_t first, int n, const Question& question) {
    const Preview& preview = e.preview;
    const int64_t width = preview.width;
    std::vector<double> rotated(n * width);
    for (int q = 0; q < n; ++q) e.kernels->rotate(preview.rotation, preview.rotation_kind, e.dim, width, hidden + (first + q) * e.dim, &rotated[q * width]);
    const int64_t pieces = scan_pieces(e);
    AllEstimates all{Scratch<float>(n * e.padded), std::vector<uint8_t>(n)};
    std::vector<uint8_t> usable(n * pieces, 1);
    const Scratch<float> queries = queries_of(rotated.data(), n, width);
    scan_rows(e, {preview.columns, Kind::f32, width, preview.base}, queries.data(), n, question.threads, [&](int, int64_t piece, int64_t start, int64_t many, float* est) {
        for (int q = 0; q < n; ++q) {
            bool finite = true;
            largest_estimate(e, question, first + q, start, many, est + q * kChunk, &finite);
            if (!finite) usable[q * pieces + piece] = 0;
            std::copy_n(est + q * kChunk, many, all.est.data() + q * e.padded + start);
        }
    });
    for (int q = 0; q < n; ++q) all.usable[q] = *std::min_element(&usable[q * pieces], &usable[q * pieces] + pieces);
    return all;
}

// The `budget` best estimates (at least k) are scored and leave `est`; the others keep their preview in the normaliser.
std::vector<Scored> spend_budget(const Executor& e, const double* hidden, float* est, const Question& question, int threads, double* lse) {
    const float none = -std::numeric_limits<float>::infinity();
    std::vector<float> order(est, est + e.vocab);
    const int64_t n = std::min(std::max(e.preview.budget, question.k), e.vocab);
    std::nth_element(order.begin(), order.begin() + (n - 1), order.end(), std::greater<float>());
    std::vector<Scored> scored;
    scored.reserve(n);
    for (int64_t pass = 0; pass < 2; ++pass)  // above the n-th largest first, then its equals, smaller ids first
        for (int64_t i = 0; i < e.vocab && static_cast<int64_t>(scored.size()) < n; ++i)
            if (est[i] > none && (pass == 0 ? est[i] > order[n - 1] : est[i] == order[n - 1])) scored.push_back({i, 0});
    score(e, hidden, scored, threads);
    double shift = -kInf, sum = 0;
    for (const Scored& s : scored) {
        shift = std::max(shift, e.linked(s.z) * question.beta);
        est[s.id] = none;
    }
    for (const Scored& s : scored) sum += std::exp(e.linked(s.z) * question.beta - shift);
    bool finite = true;
    const float top = e.kernels->largest(est, nullptr, e.padded, &finite), rest_shift = static_cast<float>(e.linked(top) * question.beta);
    double rest = 0;
    if (top > none && float_error(e, rest_shift, question.beta) < 1e-2) {
        Kernels::Sums sums{0, 0, 0};
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
    *lse = shift;
    std::sort(scored.begin(), scored.end(), better);
    return scored;
}

// take(row, its estimates, threads, answer) for every query; those without estimates are returned.
template <typename Take>
std::vector<int64_t> over_queries(const Executor& e, const double* hidden, int64_t count, const Question& question, std::vector<Answer>& answers, const Take& take) {
    const std::vector<int64_t> left = in_groups(
        count, kScanQueries, question.threads, [&](int64_t first, int64_t n) { return look(e, hidden, first, static_cast<int>(n), question); },
        [&](AllEstimates& all, int64_t row, int64_t q, int threads) {
            answers[row].bytes = static_cast<double>(e.padded * e.preview.width * 4 + e.dim * e.preview.width * item_bytes(e.preview.rotation_kind)) / static_cast<double>(all.usable.size());
            if (all.usable[q] == 0) return false;
            take(row, all.est.data() + q * e.padded, threads, answers[row]);
            return true;
        });
    for (const int64_t row : left) answers[row].dense = true;
    return left;
}

}  // namespace

std::vector<Answer> ask_preview(const Executor& e, const double* hidden, int64_t count, const Question& question) {
    std::vector<Answer> answers(count);
    const std::vector<int64_t> left = over_queries(e, hidden, count, question, answers, [&](int64_t row, float* est, int threads, Answer& answer) {
        answer.best = spend_budget(e, hidden + row * e.dim, est, question, threads, &answer.lse);
        answer.rows = static_cast<int64_t>(answer.best.size());
        answer.bytes += static_cast<double>(answer.best.size()) * e.row_bytes();
        if (static_cast<int64_t>(answer.best.size()) > question.k) answer.best.resize(question.k);
        answer.error = kInf;
    });
    if (!left.empty()) finish(e, hidden, left, question, answers);
    return answers;
}

std::vector<Answer> sample_preview(const Executor& e, const double* hidden, int64_t count, const std::vector<SampleRule>& rules, const Question& question,
                                   std::vector<Draw>* draws) {
    std::vector<Answer> answers(count);
    const std::vector<int64_t> left = over_queries(e, hidden, count, question, answers, [&](int64_t row, float* est, int threads, Answer& answer) {
        double lse = 0;
        const std::vector<Scored> scored = spend_budget(e, hidden + row * e.dim, est, question, threads, &lse);
        answer.rows += static_cast<int64_t>(scored.size());
        answer.bytes += static_cast<double>(scored.size()) * e.row_bytes();
        std::vector<double> z(est, est + e.vocab);
        for (const Scored& one : scored) z[one.id] = one.z;
        draw_from_all(e, z.data(), nullptr, rules[row], kInf, draws->data() + row * rules[row].n, answer);
    });
    if (!left.empty()) finish_samples(e, hidden, left, question, rules, *draws, answers);
    for (Draw& draw : *draws) draw.proved = false;
    return answers;
}

}  // namespace headlong
