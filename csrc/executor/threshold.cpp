// The threshold that a class has to reach, from the best estimates so far, and whether a query is better read densely.
#include <algorithm>

#include "executor/look_costs.h"
#include "executor/verbs.h"

namespace headlong {
namespace {

// k of the values are no worse than the k-th best maximum of 64 columns of them, and few more are.
float kth_largest(const float* values, size_t n, size_t k) {
    constexpr size_t kColumns = 64;
    float best[kColumns];
    std::vector<float> few;
    if (n >= 16 * kColumns && 2 * k <= kColumns) {
        std::copy_n(values, kColumns, best);
        size_t i = kColumns;
        for (; i + kColumns <= n; i += kColumns)
            for (size_t j = 0; j < kColumns; ++j) best[j] = best[j] < values[i + j] ? values[i + j] : best[j];
        std::nth_element(best, best + (k - 1), best + kColumns, std::greater<float>());
        few.resize(n);
        size_t kept = 0;
        for (i = 0; i < n; ++i) {
            few[kept] = values[i];
            kept += values[i] >= best[k - 1];
        }
        few.resize(kept);
    } else {
        few.assign(values, values + n);
    }
    std::nth_element(few.begin(), few.begin() + static_cast<int64_t>(k - 1), few.end(), std::greater<float>());
    return few[k - 1];
}

// Whether a query has so many rivals for the k-th best that it is better read densely, judged by the estimates of the sample.
bool too_many_rivals(const Executor& e, const Look& look, int q, int64_t seen, const Question& question, const float* est, size_t n) {
    const int64_t k = question.k;
    const Part* parts = &look.parts[static_cast<size_t>(q) * look.threads];
    // The k-th best of all will be about the `rank`-th best of the sample. Ties, and intervals as wide as all logits are
    // apart, reach it as often here as everywhere.
    const double seen_share = static_cast<double>(seen) / static_cast<double>(e.vocab);
    const size_t rank = std::min<size_t>(k, 1 + static_cast<size_t>(seen_share * static_cast<double>(k)));
    const float likely = kth_largest(est, n, rank);
    const Span& first = look.spans.front();
    size_t rivals = 0, further = 0;
    for (int t = 0; t < look.threads; ++t)
        for (size_t i = 0; i < parts[t].ids.size(); ++i) {
            const bool rival = parts[t].upper[i] >= likely;
            rivals += rival;
            further += rival && parts[t].ids[i] >= first.first + first.count;
        }
    const auto too_many = [&](double most) { return static_cast<double>(rivals) > most + 3 * std::sqrt(most) + 2.0 * static_cast<double>(rank) + 8; };
    // Once the look is read, candidates cost their rows; before that, the look can still be saved.
    const double spared = look.source == &e.preview ? 1 - share_of_look(e) : 1;
    if (too_many(spared * e.share * static_cast<double>(seen))) return true;
    if (!question.weighs_first) return false;
    // In a batch fewer are too many, if they are as many beyond the first classes, which may be the most frequent ones.
    const double most = bearable_hits_beforehand(e, look, e.row_cost()) / static_cast<double>(e.vocab);
    return too_many(most * static_cast<double>(seen)) && static_cast<double>(further) > most * static_cast<double>(seen - first.count);
}

// The k best of n estimates, those with the smallest ids among equals.
std::vector<Scored> best_estimates(const float* est, const int32_t* ids, size_t n, size_t k) {
    const float least = kth_largest(est, n, k);
    std::vector<Scored> rows;
    std::vector<int64_t> equal;  // to the k-th: the smallest ids of them
    for (size_t i = 0; i < n; ++i) {
        if (est[i] < least) continue;
        if (est[i] > least) rows.push_back({ids[i], 0});
        else equal.push_back(ids[i]);
    }
    const size_t more = k - rows.size();
    std::nth_element(equal.begin(), equal.begin() + (more - 1), equal.end());
    for (size_t i = 0; i < more; ++i) rows.push_back({equal[i], 0});
    return rows;
}

// Drops what cannot reach tau; returns how many are left.
size_t drop_below(Part* parts, int threads, float tau) {
    size_t open = 0;
    for (int t = 0; t < threads; ++t) {
        Part& part = parts[t];
        size_t kept = 0;
        for (size_t i = 0; i < part.ids.size(); ++i) {
            const float upper = part.upper[i];
            part.ids[kept] = part.ids[i];
            part.est[kept] = part.est[i];
            part.upper[kept] = upper;
            kept += upper >= tau;
        }
        part.ids.resize(kept);
        part.est.resize(kept);
        part.upper.resize(kept);
        open += kept;
    }
    return open;
}

}  // namespace

void raise_to(std::atomic<float>& threshold, float value) {
    float now = threshold.load(std::memory_order_relaxed);
    while (value > now && !threshold.compare_exchange_weak(now, value, std::memory_order_relaxed)) {
    }
}

// Scores the k best estimates so far, takes their worst score as the threshold and drops what cannot reach it.
// What counts is what reaches the threshold now: which thread came when decides nothing.
// A query with too many rivals is left to a dense pass.
void raise_threshold(const Executor& e, Look& look, int q, const Question& question) {
    if (look.finish_densely[q].load() != 0) return;
    std::atomic<float>& threshold = look.threshold[q];
    const float so_far = threshold.load();
    Part* parts = &look.parts[static_cast<size_t>(q) * look.threads];
    const size_t k = static_cast<size_t>(question.k);
    int64_t seen = 0;
    size_t total = 0, n = 0;
    for (int t = 0; t < look.threads; ++t) {
        seen += parts[t].seen;
        total += parts[t].ids.size();
    }
    Scratch<float> est(total);
    Scratch<int32_t> ids(total);
    for (int t = 0; t < look.threads; ++t)
        for (size_t i = 0; i < parts[t].ids.size(); ++i) {
            est[n] = parts[t].est[i];
            ids[n] = parts[t].ids[i];
            n += parts[t].upper[i] >= so_far;
        }
    if (n < k) return;
    if (too_many_rivals(e, look, q, seen, question, est.data(), n)) {
        look.finish_densely[q].store(1);
        return;
    }
    std::vector<Scored> rows = best_estimates(est.data(), ids.data(), n, k);
    score(e, &look.hidden[q * e.dim], rows, 1);
    double worst = kInf;
    for (const Scored& s : rows) worst = std::min(worst, s.z);
    const float below = static_cast<float>(worst);
    raise_to(threshold, below > worst ? std::nextafterf(below, -std::numeric_limits<float>::infinity()) : below);
    const size_t open = drop_below(parts, look.threads, threshold.load());
    if (static_cast<double>(open) > e.share * static_cast<double>(seen) + 8.0 * static_cast<double>(question.k) + 256) look.finish_densely[q].store(1);
}

}  // namespace headlong
