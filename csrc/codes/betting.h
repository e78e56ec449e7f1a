// Bets against the mean of numbers in [-1, 1]: how a sampled normaliser, an entropy and a nucleus know that they have drawn enough.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/scratch.h"

namespace headlong {

constexpr double kMost = 1 + 0x1p-20;  // the largest |X|, roundings included: the gaps hold everything else

// Whether a mixture of stakes on factors 1 + stake * factor(x) multiplies its wealth by `odds`. A product of many factors
// near one may leave the range of a double in neither direction that matters: 0 loses the bet, infinity wins it.
template <typename Factor>
bool wins(const std::vector<double>& drawn, double odds, const Factor& factor) {
    constexpr int kStakes = 6;
    constexpr double stakes[kStakes] = {0.98, 0.7, 0.45, 0.25, 0.12, 0.05};
    double wealth[kStakes] = {0.5, 0.2, 0.12, 0.08, 0.06, 0.04};  // where gaps are wide and terms seldom use them, it is all or nothing
    for (double x : drawn) {
        const double gain = factor(x);
#pragma GCC unroll 6
        for (int s = 0; s < kStakes; ++s) wealth[s] *= 1 + stakes[s] * gain;
    }
    return std::accumulate(wealth, wealth + kStakes, 0.0) >= odds;
}

// Draws until a mean that is off by `e` is refuted with `odds`, when the mean of X^2 is `spread`.
inline double draws_for(double odds, double e, double spread) {
    return e < 1 ? 2 * (std::log(odds) + 0.8) * (spread + 0.5 * e) / (e * e) : 0;
}

// Whether means of X that are `above` or more and `below` or less are refuted by what was drawn, each except with probability 1 / `odds`.
inline bool refuted(const std::vector<double>& drawn, double odds, double above, double below) {
    const double down = 1 / (kMost - above), up = 1 / (kMost + below);
    const bool not_above = above >= kMost || wins(drawn, odds, [&](double x) { return (above - x) * down; });
    return not_above && (below <= -kMost || wins(drawn, odds, [&](double x) { return (x - below) * up; }));
}

// Numbers X in [-1, 1] that were drawn.
struct Drawn {
    std::vector<double> each{};
    double sum = 0, squares = 0;

    void add(double x, int times = 1) {
        each.insert(each.end(), times, x);
        sum += x * times;
        squares += x * x * times;
    }
    double count() const { return std::max(1.0, static_cast<double>(each.size())); }
    double mean() const { return sum / count(); }
    // Draws in all that a mean which is off by `e` takes to be refuted.
    double wanted(double odds, double e) const { return draws_for(odds, e, squares / count()); }
};

}  // namespace headlong
