// Bets against the mean of numbers in [-1, 1], and points to draw by: what normalisers and the nucleus share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "executor/plan.h"
#include "runtime/scratch.h"

namespace headlong {

constexpr double kCloser = 0.7;        // what a byte of codes gathered costs in bytes of rows
constexpr double kUsed = 0.1;          // the share of a radius that is used, as a root of mean squares, where nothing was scored
constexpr double kMost = 1 + 0x1p-20;  // the largest |X|, roundings included: the gaps hold everything else

inline uint64_t mix(uint64_t x) {  // the finaliser of splitmix64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

// Whether a mixture of stakes on factors 1 + stake * factor(x) multiplies its wealth by `odds`. A product of many factors
// near one may leave the range of a double in neither direction that matters: 0 loses the bet, infinity wins it.
template <typename Factor>
bool wins(const std::vector<double>& drawn, double odds, const Factor& factor) {
    constexpr int kStakes = 6;
    constexpr double stakes[kStakes] = {0.98, 0.7, 0.45, 0.25, 0.12, 0.05};
    double wealth[kStakes] = {0.5, 0.2, 0.12, 0.08, 0.06, 0.04};  // where gaps are wide and terms seldom use them, it is all or nothing
    for (double x : drawn) {
        const double gain = factor(x);
        for (int s = 0; s < kStakes; ++s) wealth[s] *= 1 + stakes[s] * gain;
    }
    return std::accumulate(wealth, wealth + kStakes, 0.0) >= odds;
}

// Draws until a mean that is off by `e` is refuted with `odds`, when the mean of X^2 is `spread`.
inline double draws_for(double odds, double e, double spread) {
    return e < 1 ? 2 * (std::log(odds) + 0.8) * (spread + 0.5 * e) / (e * e) : 0;
}

// How many draws a bet with `odds` takes.
struct Rule {
    double odds = 2;
    double spread = 0;  // the mean of X^2 that it expects before anything is drawn

    double draws(double e) const { return draws_for(odds, e, spread); }  // for a mean that is off by `e` at most
};

// A bet that the sum known + total * E[X] is within exp(+-aim) of where the draws of X in [-1, 1] put it.
struct Bet {
    double known, total, aim, odds;
    std::vector<double> drawn{};
    double sum = 0, squares = 0;

    void add(double x, int times = 1) {
        drawn.insert(drawn.end(), times, x);
        sum += x * times;
        squares += x * x * times;
    }
    double count() const { return std::max(1.0, static_cast<double>(drawn.size())); }
    double middle() const { return known + total * sum / count(); }
    double wanted() const { return draws_for(odds, aim * middle() / total, squares / count()); }  // draws in all

    // Whether all means too far above and below are refuted.
    bool won() const {
        const double above = (middle() * std::exp(aim) - known) / total, below = (middle() * std::exp(-aim) - known) / total;
        const double down = 1 / (kMost - above), up = 1 / (kMost + below);
        const bool not_above = above >= kMost || wins(drawn, odds, [&](double x) { return (above - x) * down; });
        return not_above && (below <= -kMost || wins(drawn, odds, [&](double x) { return (x - below) * up; }));
    }
};

// `count` points of (0, total) in ascending order: sums of exponential gaps, scaled.
inline std::vector<double> sorted_points(const Kernels& kernels, uint64_t key, uint32_t round, int64_t count, double total) {
    const int64_t words = in_blocks(2 * (count + 1));
    Scratch<uint32_t> noise(words);
    kernels.noise(key, mix(key), 0x40000000u | round, 0, words, noise.data());
    std::vector<double> at(count + 1);
    double sum = 0;
    for (int64_t i = 0; i <= count; ++i) {
        const uint64_t word = static_cast<uint64_t>(noise[2 * i]) << 32 | noise[2 * i + 1];
        sum -= std::log((static_cast<double>(word) + 0.5) * 0x1p-64);
        at[i] = sum;
    }
    at.pop_back();
    for (double& point : at) point *= total / sum;
    return at;
}

// One point in each of `count` equal parts of (0, total), in ascending order; `draw` names the noise.
inline std::vector<double> spread_points(const Kernels& kernels, uint64_t key, uint32_t draw, int64_t count, double total) {
    const int64_t words = in_blocks(count);
    Scratch<uint32_t> noise(words);
    kernels.noise(key, mix(key), draw, 0, words, noise.data());
    std::vector<double> at(count);
    const double step = total / static_cast<double>(count);
    for (int64_t i = 0; i < count; ++i) at[i] = step * (static_cast<double>(i) + (noise[i] + 0.5) * 0x1p-32);
    return at;
}

// A place in a line of gaps, and the sum of those before it.
struct Reached {
    int64_t i;
    double sum;
};

// The first from there on, in steps, that reaches beyond a point. Out of line: inside of the loops around it its numbers lay in memory.
__attribute__((noinline)) inline Reached reached(const float* gap, int64_t step, int64_t stop, double point, Reached from) {
    for (; from.i < stop; from.i += step) {
        const double sum = from.sum + gap[from.i];
        if (point < sum) break;
        from.sum = sum;
    }
    return from;
}

}  // namespace headlong
