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

}  // namespace headlong
