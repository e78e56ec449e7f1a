// AVX2 with FMA and F16C.
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "kernels/kernels.h"
#include "kernels/levels.h"

namespace headlong {
namespace {

inline float sum8(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

#define LANES 8
#define LARGER(a, b) (F) _mm256_max_ps((__m256)(a), (__m256)(b))
#define SMALLER(a, b) (F) _mm256_min_ps((__m256)(a), (__m256)(b))
#define ANY(mask) (_mm256_movemask_ps((__m256)(mask)) != 0)
#define PRODUCTS(a, b) (W) _mm256_mul_epu32((__m256i)(a), (__m256i)(b))
#define SUM(v) sum8((__m256)(v))
#define GATHER_PAIRS(table, at, out)                                                                                     \
    do {                                                                                                                 \
        const __m256i cells = (__m256i)(at);                                                                             \
        const long long* pairs = reinterpret_cast<const long long*>(table);                                              \
        const __m256 low = _mm256_castsi256_ps(_mm256_i32gather_epi64(pairs, _mm256_castsi256_si128(cells), 8));         \
        const __m256 high = _mm256_castsi256_ps(_mm256_i32gather_epi64(pairs, _mm256_extracti128_si256(cells, 1), 8));   \
        const __m256d first = _mm256_castps_pd(_mm256_shuffle_ps(low, high, 0x88));                                      \
        const __m256d second = _mm256_castps_pd(_mm256_shuffle_ps(low, high, 0xDD));                                     \
        (out).first = (F)_mm256_permute4x64_pd(first, 0xD8);                                                             \
        (out).second = (F)_mm256_permute4x64_pd(second, 0xD8);                                                           \
    } while (false)
#define WIDEN_BYTES(p) _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))
#define WIDEN_HALVES(p) (D)_mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))
#include "kernels/common/all.inl"

template <Kind K>
inline F load_some(const void* row, int64_t j) {
    if (K == Kind::f32) return (F)_mm256_loadu_ps(static_cast<const float*>(row) + j);
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(static_cast<const uint16_t*>(row) + j));
    if (K == Kind::f16) return (F)_mm256_cvtph_ps(half);
    return (F)_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
}
inline D low_half(F v) { return (D)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)v)); }
inline D high_half(F v) { return (D)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)v, 1)); }
inline F fused(F a, F b, F c) { return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }

constexpr int kQueries = 4, kRowsFor[] = {0, 8, 4, 3, 3};
#include "kernels/common/row_products.inl"

#include "kernels/common/table.inl"

}  // namespace

const Kernels* avx2_kernels() {
    static constexpr Kernels table = own_table();
    return &table;
}

}  // namespace headlong
