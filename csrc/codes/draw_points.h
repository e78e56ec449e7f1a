// Points to draw by, on a line of gaps that are laid end to end, and the noise that they come from.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/scratch.h"

namespace headlong {

inline uint64_t mix(uint64_t x) {  // the finaliser of splitmix64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

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

// One of the bets on a query's nucleus. The n-th of a question takes 2^-1-n of what all of them may fail; a question that follows another
// about the same query has another budget, and no bet looks at a stream that an earlier one saw, whatever class it is about.
struct NucleusBet {
    double delta;
    uint64_t key;  // of its points
    NucleusBet(uint64_t query, double budget, int n, int64_t id) : delta(std::ldexp(budget, -1 - n)) {
        uint64_t bits;
        std::memcpy(&bits, &budget, sizeof bits);
        constexpr uint64_t purpose = 0x6E75636C65757321;  // among all that is drawn for a query
        key = mix(mix(mix(query ^ purpose) ^ bits) + static_cast<uint64_t>(n)) + static_cast<uint64_t>(id);
    }
};

}  // namespace headlong
