// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011) for a class alone, and what its Gumbel noise may be at most. For all classes in a
// row: noise() in kernels/kernels.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace headlong {

#include "kernels/common/philox.inl"

// The word of the class `id` in the stream of (seed, row, draw).
inline uint32_t philox_word(uint64_t seed, uint64_t row, uint32_t draw, int64_t id) {
    uint64_t c[4][1] = {{static_cast<uint64_t>(id) >> 2}, {draw}, {static_cast<uint32_t>(row)}, {row >> 32}};
    philox(c, seed, [](uint64_t a, uint64_t b) { return (a & 0xFFFFFFFFu) * b; });
    return static_cast<uint32_t>(c[id & 3][0]);
}

// No less than -log(-log u) of any u whose first 32 bits are these: -log u >= 1 - u, and a logarithm to the base 2 lies above the chord
// between two powers of two. Too large by 0.06 where the noise is high, and by more where it is not.
inline double most_gumbel_of(uint32_t word) {
    const double gap = static_cast<double>(~word);  // 2^32 (1 - u), or less
    if (!(gap > 0)) return 46;                      // u has 65 bits
    uint64_t bits;
    std::memcpy(&bits, &gap, sizeof bits);
    const double exponent = static_cast<double>(static_cast<int64_t>(bits >> 52) - 1023);
    const double above = static_cast<double>(bits & 0xFFFFFFFFFFFFFull) * 0x1p-52;
    return (32 - exponent - above) * 0.6931471805599454;
}

// Whether a class may have a key no less than `key`, by the first 32 bits of its noise; f = link(z) / T.
inline bool may_reach(double f, uint32_t word, double key) {
    constexpr double slack = 1e-12;  // of sums of a few numbers, as a share of the largest: thousands of their roundings
    return !(f + most_gumbel_of(word) + slack * (46 + std::fabs(f)) < key);
}

// -log(-log(p / 2^32)) and a little: what noise is below where its word is below p <= 2^32.
inline double gumbel_below(uint64_t p) {
    const double rest = static_cast<double>((uint64_t{1} << 32) - p) * 0x1p-32;
    if (p == 0) return -46;  // there is none
    const double most = -std::log(-std::log1p(-rest));
    return most + 1e-12 * (1 + std::fabs(most));
}

}  // namespace headlong
