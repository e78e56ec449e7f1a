// Sampling one query: every class has a Gumbel of its own, fixed by (seed, row, class), and the argmax of
// link(z) / T + gumbel is an exact sample. The classes whose keys may be the best are scored, their worst key is the threshold,
// and what can still reach it is scored.
// top_k, top_p and min_p are in sampling/filters.cpp.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "executor/full_scan.h"
#include "executor/verbs.h"

namespace headlong {
namespace {

constexpr int64_t kHeldBytes = int64_t{1} << 25;  // of estimates at once

// What a scan of the rows shows of one query.
Estimates estimates_of(const Executor& e, const AllEstimates& scanned, int64_t q, int64_t row, const double* hidden, double beta) {
    Estimates all;
    all.hidden = hidden, all.row = row;
    all.shift = scanned.top[q] > -std::numeric_limits<float>::infinity() ? e.linked(scanned.top[q]) * beta : -kInf;
    all.est.resize(e.padded), all.rad.resize(e.padded);
    std::copy_n(scanned.est.data() + q * e.padded, e.padded, all.est.data());
    radii_of_rows(e, radius_of_rows(e, hidden), 0, e.padded, all.rad.data());
    return all;
}

}  // namespace

// What is asked of the estimates: ids that the filters start from.
Question question_of(const SampleRule& rule, const Question& question, int64_t vocab) {
    Question asked = question;
    asked.beta = 1 / rule.temperature;
    asked.eps = kInf;  // no sample asks for a normaliser
    const bool by_mass = rule.top_p < 1 || rule.min_p > 0;
    asked.k = rule.top_k > 0 ? std::min(rule.top_k, vocab) : by_mass ? 1 : 0;
    return asked;
}

std::vector<Answer> sample(const Executor& e, const double* hidden, int64_t count, const SampleRule& rule, const Question& question, std::vector<Draw>* draws) {
    draws->assign(count * rule.n, Draw{});
    const Question asked = question_of(rule, question, e.vocab);
    if (e.preview.budget > 0) return sample_preview(e, hidden, count, rule, asked, draws);
    std::vector<Answer> answers(count);
    std::vector<int64_t> left;
    const int64_t most = std::max<int64_t>(kRowQueries, std::min<int64_t>(kScanQueries, kHeldBytes / (4 * e.padded)));
    for (int64_t start = 0; start < count; start += most) {
        const int n = static_cast<int>(std::min(most, count - start));
        const AllEstimates scanned = estimate_all(e, {e.weight, e.kind, e.dim, e.base}, hidden + start * e.dim, start, n, asked);
        std::vector<uint8_t> open(n);
        const int inside = n < 2 * question.threads ? question.threads : 1;  // threads of one query
        each_resolved(n, question.threads, inside > 1, [&](int64_t q) {
            const int64_t row = start + q;
            Answer& answer = answers[row];
            answer.dense = true;
            answer.bytes = static_cast<double>(e.vocab) * e.row_bytes() / n;
            open[q] = 1;
            if (scanned.usable[q] == 0) return;
            Estimates all = estimates_of(e, scanned, q, row, hidden + row * e.dim, asked.beta);
            open[q] = !resolve_sample(e, all, asked, rule, inside, draws->data() + row * rule.n, answer);
        });
        for (int q = 0; q < n; ++q)
            if (open[q]) left.push_back(start + q);
    }
    if (!left.empty()) finish_samples(e, hidden, left, asked, rule, *draws, answers);
    return answers;
}

bool resolve_sample(const Executor& e, Estimates& all, const Question& question, const SampleRule& rule, int threads, Draw* draws, Answer& answer) {
    if (!(std::fabs(all.shift) < kMostShift)) return false;
    if (rule.top_k == 0 && (rule.top_p < 1 || rule.min_p > 0)) return draw_filtered(e, all, question, rule, threads, draws, answer);
    if (rule.top_k > 0) {
        std::vector<Scored> best;
        if (!find_best(e, all, question.k, threads, best, answer)) return false;
        const std::vector<Scored> kept = filtered(e, std::move(best), rule);
        for (int i = 0; i < rule.n; ++i) draws[i] = pick(e, kept, rule, all.row, i);
        return true;
    }
    for (int i = 0; i < rule.n; ++i) {
        std::vector<Keyed> first;
        Keys keys;
        keys.draw = static_cast<uint32_t>(i);
        if (!best_keys(e, all, rule, 1, threads, keys, first, answer)) return false;
        if (!first.empty()) draws[i] = {first[0].id, first[0].z, first[0].key, true};
    }
    return true;
}

// Scores rows; they leave the estimates.
void score_known(const Executor& e, Estimates& all, std::vector<Scored>& rows, int threads, Answer& answer) {
    if (all.given) {
        for (Scored& s : rows) s.z = all.est[s.id];
    } else {
        score(e, all.hidden, rows, threads);
        answer.rows += static_cast<int64_t>(rows.size());
        answer.bytes += static_cast<double>(rows.size()) * e.row_bytes();
    }
    for (const Scored& s : rows) {
        all.est[s.id] = -std::numeric_limits<float>::infinity();
        all.rad[s.id] = 0;
    }
    all.scored.insert(all.scored.end(), rows.begin(), rows.end());
}

}  // namespace headlong
