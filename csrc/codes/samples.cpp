// Draws of all classes from codes: estimates and radii are kept, a few queries at a time, and each query's draws are made of them as of any
// others (sampling/sample.cpp).
#include <algorithm>
#include <cmath>
#include <limits>

#include "codes/pass.h"
#include "executor/verbs.h"

namespace headlong {
namespace {

constexpr int64_t kKeptBytes = int64_t{1} << 25;  // of estimates at once

// The estimates of some queries, [query][tiles * 64], and the radii of their tiles, [query][tiles].
struct Kept {
    Scratch<float> est, radii;
    std::vector<float> constant;
};

Kept scan_and_keep(const Codes& codes, const PreparedCodes& all, double kappa, int threads) {
    const auto n = static_cast<int64_t>(all.queries.size()), padded = codes.count * kTile;
    Kept kept{Scratch<float>(n * padded), Scratch<float>(n * codes.count), {}};
    std::vector<ScanRadii> own;
    for (const CodeGroup& group : all.groups) {
        own.push_back(radii_of(codes, &all.queries[group.first], group.n, kappa));
        for (int q = 0; q < group.n; ++q) kept.constant.push_back(own.back().constant[q]);
    }
    scan_tiles(codes, all.groups, 1, threads, [&](int, size_t g, int64_t tile, const float* est) {
        const CodeGroup& group = all.groups[g];
        alignas(64) float radii[kMostLanes];
        codes.scan->radii(codes.tile(tile), codes.layout, own[g], 0, radii, nullptr, nullptr);
        for (int q = 0; q < group.n; ++q) {
            const float add = static_cast<float>(all.queries[group.first + q].add);
            float* to = &kept.est[(group.first + q) * padded + tile * kTile];
            for (int64_t i = 0; i < kTile; ++i) to[i] = est[q * kTile + i] + add;
            kept.radii[(group.first + q) * codes.count + tile] = radii[q];
        }
    });
    return kept;
}

Estimates estimates_of(const Codes& codes, const PreparedCodes& prepared, const Kept& kept, int64_t q, const Question& question, int64_t row, double beta) {
    const Executor& e = *codes.rows;
    Estimates all;
    all.hidden = prepared.queries[q].hidden;
    all.est.resize(e.padded), all.rad.resize(e.padded);
    float top = -std::numeric_limits<float>::infinity();
    // The sum of an estimate and what joins it is rounded once more.
    const auto add = static_cast<float>(std::fabs(prepared.queries[q].add));
    for (int64_t t = 0; t < codes.count; ++t) {
        const float *est = &kept.est[q * e.padded + t * kTile], *shares = codes.shares(t);
        const float radius = kept.radii[q * codes.count + t], fixed = kept.constant[q] + add * 0x1p-22f;
        float *to = &all.est[t * kTile], *rad = &all.rad[t * kTile];
        for (int64_t i = 0; i < kTile; ++i) {
            to[i] = est[i];
            rad[i] = shares[i] * radius + fixed + std::fabs(est[i]) * 0x1p-23f;
        }
        const uint64_t allowed = allowed_in(question, row, e.vocab, t);
        for (int64_t i = 0; i < kTile && allowed != ~uint64_t{0}; ++i)
            if ((allowed >> i & 1) == 0) to[i] = -std::numeric_limits<float>::infinity(), rad[i] = 0;
        for (int64_t i = 0; i < kTile; ++i) top = std::max(top, to[i]);
    }
    all.shift = top > -std::numeric_limits<float>::infinity() ? e.linked(top) * beta : -kInf;
    return all;
}

}  // namespace

std::vector<Answer> sample(const Codes& codes, const double* hidden, int64_t n, const std::vector<SampleRule>& rules, const Question& question,
                           std::vector<Draw>* draws) {
    const Executor& e = *codes.rows;
    const int each = rules.front().n;
    draws->assign(n * each, Draw{});
    std::vector<Answer> answers(n);
    const double kappa = kappa_of(1.0 + each, question.delta);  // no winner may be missed, nor the best class
    std::vector<int64_t> left;
    const int64_t at_once = std::max<int64_t>(kLanes, kKeptBytes / (4 * e.padded) / kLanes * kLanes);
    for (int64_t start = 0; start < n; start += at_once) {
        const int64_t some = std::min(at_once, n - start);
        const PreparedCodes prepared = prepare_codes(codes, hidden + start * e.dim, some, question.seed, question.threads);
        const Kept kept = scan_and_keep(codes, prepared, kappa, question.threads);
        std::vector<uint8_t> open(some);
        const int inside = some < 2 * question.threads ? question.threads : 1;  // threads of one query
        const auto resolve = [&](int64_t q) {
            const int64_t row = start + q;
            Answer& answer = answers[row];
            answer.bytes = codes.bytes() / static_cast<double>(some);
            open[q] = 1;
            if (!prepared.queries[q].usable) return;
            Estimates all = estimates_of(codes, prepared, kept, q, question, row, 1 / rules[row].temperature);
            Draw* own = draws->data() + row * each;
            open[q] = !draw_plainly(e, all, rules[row], inside, own, answer);
            for (int i = 0; i < each; ++i) own[i].proved = own[i].proved && !(question.delta > 0);
        };
        each_resolved(some, question.threads, inside > 1, resolve);
        for (int64_t q = 0; q < some; ++q)
            if (open[q]) left.push_back(start + q);
    }
    if (!left.empty()) finish_samples(e, hidden, left, question, rules, *draws, answers);
    return answers;
}

}  // namespace headlong
