// The looks of blocks/looks.h for one instruction set; see blocks/looks.inl.
#include <immintrin.h>
#include <cstdint>
#include <cstring>

#include "blocks/looks.h"

namespace headlong {
namespace {

#include "blocks/wide.inl"

typedef Two<F8> F16;
typedef Two<I8> I16;
typedef int8_t Codes16 __attribute__((vector_size(16)));
typedef uint8_t Lengths16 __attribute__((vector_size(16)));

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

#include "blocks/one_by_one.inl"
#include "blocks/looks.inl"

}  // namespace

const Looks* avx2_looks() {
    static const Looks table = {"avx2", sixteen, ray, ray_nodes, closer, spread, listed, largest, taken, opened, closer_of};
    return &table;
}

}  // namespace headlong
