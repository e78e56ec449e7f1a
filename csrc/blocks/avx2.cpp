// The looks of blocks/looks.h for one instruction set; see blocks/looks.inl.
#include <immintrin.h>
#include <cstdint>
#include <cstring>

#include "blocks/looks.h"
#include "kernels/levels.h"

namespace headlong {
namespace {

#include "blocks/wide.inl"

typedef Two<F8> F16;
typedef Two<I8> I16;

inline F16 both(__m256i low, __m256i high) { return {_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)}; }
inline F16 floats(Codes16 codes) {
    const __m128i all = reinterpret_cast<__m128i>(codes);
    return both(_mm256_cvtepi8_epi32(all), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(all, all)));
}
inline F16 floats(Lengths16 lengths) {
    const __m128i all = reinterpret_cast<__m128i>(lengths);
    return both(_mm256_cvtepu8_epi32(all), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(all, all)));
}

inline uint32_t reaching(const float* upper, float tau) {
    const __m256 edge = _mm256_set1_ps(tau);
    const auto half = [&](const float* from) {
        return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(from), edge, _CMP_GE_OQ)));
    };
    return half(upper) | half(upper + 8) << 8;
}

// For each mask of eight lanes the lanes that it names, at the front.
struct Lanes {
    uint8_t named[256][8];
};
constexpr Lanes lanes_of_masks() {
    Lanes lanes = {};
    for (int mask = 0; mask < 256; ++mask)
        for (int lane = 0, at = 0; lane < 8; ++lane)
            if (mask >> lane & 1) lanes.named[mask][at++] = static_cast<uint8_t>(lane);
    return lanes;
}
constexpr Lanes kLanes = lanes_of_masks();

// The lanes of a mask at the front, zeros behind them.
inline __m256i front_half(uint32_t mask, __m256i values) {
    const __m256i places = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(kLanes.named[mask])));
    const __m256i there = _mm256_cmpgt_epi32(_mm256_set1_epi32(__builtin_popcount(mask)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return _mm256_and_si256(_mm256_permutevar8x32_epi32(values, places), there);
}

#define OWN_FRONT
// Those of sixteen numbers that have a bit in `open`, at the front, zeros behind them.
template <typename T>
inline void front(uint32_t open, const T* from, T* to) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)), high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 8));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 8), _mm256_setzero_si256());
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), front_half(open & 255, low));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + __builtin_popcount(open & 255)), front_half(open >> 8, high));
}

#include "blocks/one_by_one.inl"
#include "blocks/looks.inl"

}  // namespace

const Looks* avx2_looks() { return &kLooks; }

}  // namespace headlong
