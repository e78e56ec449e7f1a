// Sampling one query: every class has a Gumbel of its own, fixed by (seed, row, class), and the argmax of
// link(z) / T + gumbel is an exact sample. The classes whose keys may be the best are scored, their worst key is the threshold,
// and what can still reach it is scored.
// Filters go by the best classes instead: sampling/filters.cpp.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "executor/full_scan.h"
#include "executor/verbs.h"

namespace headlong {
namespace {

constexpr int64_t kHeldEstimates = int64_t{1} << 25;  // of estimates at once

// What a scan of the rows shows of one query.
Estimates estimates_of(const Executor& e, const AllEstimates& scanned, int64_t q, const double* hidden, double beta) {
    Estimates all;
    all.hidden = hidden;
    all.shift = scanned.top[q] > -std::numeric_limits<float>::infinity() ? e.linked(scanned.top[q]) * beta : -kInf;
    all.est.resize(e.padded), all.rad.resize(e.padded);
    std::copy_n(scanned.est.data() + q * e.padded, e.padded, all.est.data());
    radii_of_rows(e, radius_of_rows(e, hidden), 0, e.padded, all.rad.data());
    return all;
}

}  // namespace

// Draws of all classes, each row by a rule of its own.
std::vector<Answer> sample(const Executor& e, const double* hidden, int64_t count, const std::vector<SampleRule>& rules, const Question& question, std::vector<Draw>* draws) {
    const int each = rules.front().n;
    draws->assign(count * each, Draw{});
    if (e.preview.budget > 0) return sample_preview(e, hidden, count, rules, question, draws);
    std::vector<Answer> answers(count);
    const int64_t most = std::max<int64_t>(kRowQueries, std::min<int64_t>(kScanQueries, kHeldEstimates / (4 * e.padded)));
    const std::vector<int64_t> left = in_groups(
        count, most, question.threads,
        [&](int64_t first, int64_t n) { return estimate_all(e, {e.weight, e.kind, e.dim, e.base}, hidden + first * e.dim, first, static_cast<int>(n), question); },
        [&](const AllEstimates& scanned, int64_t row, int64_t q, int threads) {
            Answer& answer = answers[row];
            answer.dense = true;
            answer.bytes = static_cast<double>(e.vocab) * e.row_bytes() / static_cast<double>(scanned.top.size());
            if (scanned.usable[q] == 0) return false;
            Estimates all = estimates_of(e, scanned, q, hidden + row * e.dim, 1 / rules[row].temperature);
            return draw_plainly(e, all, rules[row], threads, draws->data() + row * each, answer);
        });
    if (!left.empty()) finish_samples(e, hidden, left, question, rules, *draws, answers);
    return answers;
}

bool draw_plainly(const Executor& e, Estimates& all, const SampleRule& rule, int threads, Draw* draws, Answer& answer) {
    if (!(std::fabs(all.shift) < kMostShift)) return false;
    for (int i = 0; i < rule.n; ++i) {
        Keyed best;
        Keys keys;
        keys.draw = static_cast<uint32_t>(i);
        if (!best_key(e, all, rule, threads, keys, best, answer)) return false;
        if (best.id >= 0) draws[i] = {best.id, best.z, best.key, true};
    }
    return true;
}

// Scores rows; they leave the estimates.
void score_known(const Executor& e, Estimates& all, std::vector<Scored>& rows, int threads, Answer& answer) {
    score(e, all.hidden, rows, threads);
    answer.rows += static_cast<int64_t>(rows.size());
    answer.bytes += static_cast<double>(rows.size()) * e.row_bytes();
    for (const Scored& s : rows) {
        all.est[s.id] = -std::numeric_limits<float>::infinity();
        all.rad[s.id] = 0;
    }
    all.scored.insert(all.scored.end(), rows.begin(), rows.end());
}

}  // namespace headlong
