// Whether a class is in the nucleus, from a sample of the others.
//
// A class s stays while the classes better than it have less than top_p of all mass, that is while
//     sum_i y_i > 0,   y_i = exp(link(z_i) beta) (top_p - [i better than s]).
// The interval of z_i gives a middle c_i of y_i and how far r_i it is from there at most. Where |sum c| > sum r, the sign is
// proved. Else classes are drawn in proportion to r_i: X = (y_i - c_i) / r_i lies in [-1, 1], and of the two claims, that its mean
// is above or below -sum c / sum r, one is bet against until it is refuted (see bet.cpp). Most classes that are asked for are
// far from the boundary, since they were drawn by their own mass: some dozens of rows decide.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "bets.h"
#include "bins.h"

namespace headlong {

// The middles c and widths r of all classes; returns the sum of the former. `before` gets the sums of the latter run by run.
double Executor::balance(const Look& look, int q, const Question& question, double top_p, const Scored& of, int threads, Weighed& w,
                         Scratch<double>& before) const {
    const float* est = look.est.data() + q * padded;
    const int64_t chunks = (padded + kChunk - 1) / kChunk;
    const float never = std::numeric_limits<float>::infinity();
    const float inside = static_cast<float>(top_p), outside = static_cast<float>(1 - top_p), z = static_cast<float>(of.z);
    const float above = std::nextafterf(z, never), below = std::nextafterf(z, -never);
    w.middle.resize(padded);
    w.gap.resize(padded);
    before.resize(padded / kRun + 1);
    std::vector<double> sums(chunks);
    over_chunks(chunks, threads, [&](int, int64_t c) {
        float rad[kChunk];
        int32_t none[kChunk + kRun];
        const int64_t first = c * kChunk, n = std::min<int64_t>(kChunk, padded - first);
        float *middle = &w.middle[first], *gap = &w.gap[first];
        const float* e = est + first;
        kernels->radius(look.prepared.radius[q], first, n, rad);
        kernels->gaps(e, rad, n, link, static_cast<float>(question.beta), w.shift, w.slop, middle, gap);
        if (of.id >= first && of.id < first + n) middle[of.id - first] = gap[of.id - first] = 0;
        for (int64_t i = 0; i < n; ++i) {
            const bool better = e[i] > z, sure = e[i] - rad[i] > above || e[i] + rad[i] < below;
            const float own = better ? outside : inside, other = better ? inside : outside;
            // On the other side its mass is taken with the other sign: all of it, up to its upper end, is the distance.
            gap[i] = sure ? own * gap[i] : std::max(own * gap[i], own * middle[i] + other * (middle[i] + gap[i]));
            middle[i] = better ? -own * middle[i] : own * middle[i];
        }
        sums[c] = 0;
        for (int64_t i = 0; i < n; ++i) sums[c] += middle[i];
        kernels->split(gap, n, never, static_cast<int32_t>(first), none, &before[first / kRun + 1]);
    });
    before[0] = 0;
    for (int64_t r = 0; r < padded / kRun; ++r) before[r + 1] += before[r];
    return std::accumulate(sums.begin(), sums.end(), 0.0);
}

Side Executor::side_of_nucleus(const Look& look, int q, const Question& question, double top_p, const Scored& of,
                               const std::vector<Scored>& scored, double odds, uint64_t key, int threads, Answer& answer) const {
    Weighed w;
    Scratch<double> before;
    w.shift = static_cast<float>(std::max(look.masses[q].shift, linked(of.z) * question.beta));
    for (const Scored& s : scored) w.shift = std::max(w.shift, static_cast<float>(linked(s.z) * question.beta));
    w.slop = static_cast<float>(0x1p-14 + 2 * (float_error(w.shift, question.beta) + dot_error(&look.hidden[q * dim])));
    const auto term = [&](const Scored& s) {
        const bool above = s.id != of.id && better(s, of);
        return std::exp(linked(s.z) * question.beta - w.shift) * (above ? top_p - 1 : top_p);
    };
    double sum = balance(look, q, question, top_p, of, threads, w, before), exact = 0;
    bool counted = false;
    for (const Scored& s : scored) {
        exact += term(s);
        counted = counted || s.id == of.id;
    }
    if (!counted) exact += term(of);
    const double total = before[padded / kRun];
    sum += exact;
    // Sums of float64 and the exact terms are off by far less than this.
    const double rounding = 0x1p-30 * (total + std::fabs(exact) + std::fabs(sum));
    if (!(total < 1e30)) return {};
    if (std::fabs(sum) > total * kMost + rounding) return {true, sum > 0, true};
    if (!(total > 0)) return {};

    const double bound = -sum / total, up = 1 / (kMost + bound), down = 1 / (kMost - bound);
    const double most = share * static_cast<double>(vocab) / 8;
    std::vector<double> drawn;
    for (uint32_t round = 0; round < 16; ++round) {
        const int64_t more = 48 + static_cast<int64_t>(drawn.size());
        if (static_cast<double>(drawn.size()) + static_cast<double>(more) > most + 1024) break;
        const std::vector<double> fresh = sample_terms(look, q, w, before, key, round, more, threads, term, answer);
        drawn.insert(drawn.end(), fresh.begin(), fresh.end());
        if (wins(drawn, odds, [&](double x) { return (x - bound) * up; })) return {true, true, false};
        if (wins(drawn, odds, [&](double x) { return (bound - x) * down; })) return {true, false, false};
    }
    return {};
}

}  // namespace headlong
