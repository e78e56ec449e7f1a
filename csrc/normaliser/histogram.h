// Histograms of positive floats in place of sorting: what proofs, bets and nuclei share.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace headlong {

constexpr int kBins = 512;  // of a float, half an octave each

inline int bin_of(float x) {
    int32_t word;
    std::memcpy(&word, &x, 4);
    return word < 0 ? 0 : word >> 22;  // eight bits of exponent and one of mantissa; nothing below zero has a bin
}

// The least float of a bin; infinity for those that hold no numbers.
inline float edge_of(int bin) {
    if (bin >= bin_of(std::numeric_limits<float>::infinity())) return std::numeric_limits<float>::infinity();
    const int32_t word = bin << 22;
    float x;
    std::memcpy(&x, &word, 4);
    return x;
}

struct Bin {
    double count = 0, low = 0, high = 0;
};
using Histogram = std::vector<Bin>;

inline Histogram sum_up(const std::vector<Histogram>& each) {
    Histogram all(kBins);
    for (const Histogram& one : each)
        for (size_t b = 0; b < one.size(); ++b) {
            all[b].count += one[b].count;
            all[b].low += one[b].low;
            all[b].high += one[b].high;
        }
    return all;
}

// Exponentials less than exp(-88) of the shift are 0. Where rows turned out so far above or below the estimates that set it
// (it is that of a look), the sums have lost the other classes.
inline bool out_of_range(double exact, double sum) { return !(exact < 1e30 && sum > 1e-20); }

}  // namespace headlong
