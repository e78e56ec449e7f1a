// AVX-512 with VNNI. Nothing here is shared with other translation units but the table of pointers.
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "kernels/kernels.h"
#include "kernels/levels.h"

namespace headlong {
namespace {

#define LANES 16
#define LARGER(a, b) (F) _mm512_max_ps((__m512)(a), (__m512)(b))
#define SMALLER(a, b) (F) _mm512_min_ps((__m512)(a), (__m512)(b))
#define ANY(mask) (_mm512_test_epi32_mask((__m512i)(mask), (__m512i)(mask)) != 0)
#define PRODUCTS(a, b) (W) _mm512_mul_epu32((__m512i)(a), (__m512i)(b))
#define SUM(v) _mm512_reduce_add_ps((__m512)(v))
#define GATHER_PAIRS(table, at, out)                                                                                     \
    do {                                                                                                                 \
        const __m512i cells = (__m512i)(at);                                                                             \
        const __m512i low = _mm512_i32gather_epi64(_mm512_castsi512_si256(cells), table, 8);                             \
        const __m512i high = _mm512_i32gather_epi64(_mm512_extracti64x4_epi64(cells, 1), table, 8);                      \
        const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);               \
        (out).first = (F)_mm512_permutex2var_epi32(low, even, high);                                                     \
        (out).second = (F)_mm512_permutex2var_epi32(low, _mm512_add_epi32(even, _mm512_set1_epi32(1)), high);            \
    } while (false)
#define WIDEN_BYTES(p) _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))
#define WIDEN_HALVES(p) (D)_mm512_cvtps_pd(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))
#include "kernels/common/all.inl"

template <Kind K>
inline F load_some(const void* row, int64_t j) {
    if (K == Kind::f32) return (F)_mm512_loadu_ps(static_cast<const float*>(row) + j);
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(static_cast<const uint16_t*>(row) + j));
    if (K == Kind::f16) return (F)_mm512_cvtph_ps(half);
    return (F)_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
}
inline D low_half(F v) { return (D)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)v)); }
inline D high_half(F v) { return (D)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)v, 1)); }
inline F fused(F a, F b, F c) { return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }

#define OWN_PARTS
inline __mmask16 first_of(int64_t left) { return static_cast<__mmask16>(left > 0 ? (1u << (left < 16 ? left : 16)) - 1 : 0); }
template <Kind K>
inline F load_part(const void* row, int64_t j, int64_t left) {
    const __mmask16 mask = first_of(left);
    if (K == Kind::f32) return (F)_mm512_maskz_loadu_ps(mask, static_cast<const float*>(row) + j);
    const __m256i half = _mm256_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(row) + j);
    if (K == Kind::f16) return (F)_mm512_cvtph_ps(half);
    return (F)_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
}
inline D load_part(const double* x, int64_t left) { return (D)_mm512_maskz_loadu_pd(static_cast<__mmask8>(first_of(left)), x); }

#define OWN_SUMS
// The sums of the lanes of sixteen vectors. Each is added up in one order, whichever of them it is.
inline __m512 sums_of(const __m512 (&v)[16]) {
    __m512 half[8], quarter[4], two[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) half[i] = _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const __m512d a = _mm512_castps_pd(half[2 * i]), b = _mm512_castps_pd(half[2 * i + 1]);
        quarter[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i)
        two[i] = _mm512_add_ps(_mm512_shuffle_f32x4(quarter[2 * i], quarter[2 * i + 1], 0x88), _mm512_shuffle_f32x4(quarter[2 * i], quarter[2 * i + 1], 0xDD));
    return _mm512_add_ps(_mm512_shuffle_f32x4(two[0], two[1], 0x88), _mm512_shuffle_f32x4(two[0], two[1], 0xDD));
}
// Row after row of one query, then of the next.
template <int R, int N>
inline void store_sums(const F (&sum)[R][N], float* out, int64_t stride) {
    static_assert(R * N <= 16);
    __m512 all[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) all[i] = i < R * N ? (__m512)sum[i % R][i / R] : _mm512_setzero_ps();
    const __m512 sums = sums_of(all);
#pragma GCC unroll 16
    for (int q = 0; q < N; ++q) _mm512_mask_storeu_ps(out + q * stride - q * R, static_cast<__mmask16>(((1u << R) - 1) << (q * R)), sums);
}

constexpr int kQueries = 8, kRowsFor[] = {0, 8, 8, 5, 4, 3, 2, 2, 2};
#include "kernels/common/row_products.inl"

// ---- compressing, where the compiler's vector types have no word for it ----
//
// In registers: some processors take a hundred cycles to compress into memory. A whole vector is stored, never beyond the
// n that the output holds, because no more lanes came before than were read.

int64_t lower_above(const float* est, const float* rad, int64_t n, float floor, float* out) {
    int64_t count = 0;
    const __m512 least = _mm512_set1_ps(floor);
    for (int64_t i = 0; i < n; i += 16) {
        __m512 low = _mm512_sub_ps(_mm512_loadu_ps(est + i), _mm512_loadu_ps(rad + i));
        __mmask16 mask = _mm512_cmp_ps_mask(low, least, _CMP_GT_OQ);
        if (mask == 0) continue;
        _mm512_storeu_ps(out + count, _mm512_maskz_compress_ps(mask, low));
        count += __builtin_popcount(mask);
    }
    return count;
}

int64_t candidates(const float* est, const float* rad, int64_t n, float tau, int32_t first, int32_t* ids, float* kept,
                  float* upper) {
    int64_t count = 0;
    const __m512 least = _mm512_set1_ps(tau);
    const __m512i steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int64_t i = 0; i < n; i += 16) {
        __m512 e = _mm512_loadu_ps(est + i), high = _mm512_add_ps(e, _mm512_loadu_ps(rad + i));
        __mmask16 mask = _mm512_cmp_ps_mask(high, least, _CMP_GE_OQ);
        if (mask == 0) continue;
        __m512i id = _mm512_add_epi32(steps, _mm512_set1_epi32(first + static_cast<int32_t>(i)));
        _mm512_storeu_si512(ids + count, _mm512_maskz_compress_epi32(mask, id));
        _mm512_storeu_ps(kept + count, _mm512_maskz_compress_ps(mask, e));
        _mm512_storeu_ps(upper + count, _mm512_maskz_compress_ps(mask, high));
        count += __builtin_popcount(mask);
    }
    return count;
}

#include "kernels/common/table.inl"

}  // namespace

const Kernels* avx512_kernels() {
    static constexpr Kernels table = [] {
        Kernels own = own_table();
        own.lower_above = lower_above, own.candidates = candidates;
        return own;
    }();
    return &table;
}

}  // namespace headlong
