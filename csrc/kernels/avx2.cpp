// AVX2 with FMA and F16C.
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "kernels/cpu.h"
#include "kernels/kernels.h"

namespace headlong {
namespace {

#include "kernels/common/avx2.inl"

// Half a block (32 classes) of one query: 16-bit products of bytes taken apart, because the 8-bit instruction saturates.
// Codes of fewer bits are taken out of their words first, and fit the 8-bit instruction.
template <int Bits>
void scan_half(const uint8_t* half, int64_t words, const int8_t* planes, const int32_t* offset, float step,
               const float* scale, const float* base, float add, float* est) {
    constexpr int kGroups = 8 / Bits;
    const __m256i mask = _mm256_set1_epi8(static_cast<char>((1 << Bits) - 1)), ones = _mm256_set1_epi16(1);
    __m256i high[4], low[4];
    for (int v = 0; v < 4; ++v) high[v] = low[v] = _mm256_setzero_si256();
    const __m256i even = _mm256_set1_epi16(0x00FF);
    for (int64_t j = 0; Bits < 8 && j < words; ++j) {
        __m256i code[4];
        for (int v = 0; v < 4; ++v)
            code[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(half + j * 256 + v * 32));
        for (int g = 0; g < kGroups; ++g) {
            int32_t x[2];
            std::memcpy(x, planes + (j * kGroups + g) * 8, 8);
            const __m256i x0 = _mm256_set1_epi32(x[0]), x1 = _mm256_set1_epi32(x[1]);
            for (int v = 0; v < 4; ++v) {
                const __m256i u = _mm256_and_si256(code[v], mask);
                high[v] = _mm256_add_epi32(high[v], _mm256_madd_epi16(_mm256_maddubs_epi16(u, x0), ones));
                low[v] = _mm256_add_epi32(low[v], _mm256_madd_epi16(_mm256_maddubs_epi16(u, x1), ones));
                code[v] = _mm256_srli_epi32(code[v], Bits);
            }
        }
    }
    for (int64_t j = 0; Bits == 8 && j < words; ++j) {
        int32_t x[2];
        std::memcpy(x, planes + j * 8, 8);
        __m256i x0 = _mm256_set1_epi32(x[0]), x1 = _mm256_set1_epi32(x[1]);
        __m256i x0e = _mm256_srai_epi16(_mm256_slli_epi16(x0, 8), 8), x0o = _mm256_srai_epi16(x0, 8);
        __m256i x1e = _mm256_srai_epi16(_mm256_slli_epi16(x1, 8), 8), x1o = _mm256_srai_epi16(x1, 8);
        for (int v = 0; v < 4; ++v) {
            __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(half + j * 256 + v * 32));
            __m256i e = _mm256_and_si256(code, even), o = _mm256_srli_epi16(code, 8);
            high[v] = _mm256_add_epi32(high[v], _mm256_add_epi32(_mm256_madd_epi16(e, x0e), _mm256_madd_epi16(o, x0o)));
            low[v] = _mm256_add_epi32(low[v], _mm256_add_epi32(_mm256_madd_epi16(e, x1e), _mm256_madd_epi16(o, x1o)));
        }
    }
    __m256i o0 = _mm256_set1_epi32(offset[0]), o1 = _mm256_set1_epi32(offset[1]);
    for (int v = 0; v < 4; ++v) {
        if (Bits < 8) high[v] = _mm256_slli_epi32(high[v], 1), low[v] = _mm256_slli_epi32(low[v], 1);
        __m256 a = _mm256_cvtepi32_ps(_mm256_sub_epi32(high[v], o0)), b = _mm256_cvtepi32_ps(_mm256_sub_epi32(low[v], o1));
        __m256 dot = _mm256_fmadd_ps(a, _mm256_set1_ps(256.f), b);
        __m256 unit = _mm256_mul_ps(_mm256_loadu_ps(scale + 8 * v), _mm256_set1_ps(step));
        __m256 start = base == nullptr ? _mm256_loadu_ps(est + 8 * v)
                                       : _mm256_add_ps(_mm256_loadu_ps(base + 8 * v), _mm256_set1_ps(add));
        _mm256_storeu_ps(est + 8 * v, _mm256_fmadd_ps(dot, unit, start));
    }
}

void scan_u8(const uint8_t* block, int64_t words, int bits, const int32_t*, const int8_t* planes, const int32_t* offset,
             const float* step, const float* scale, const float* base, const float* add, int n, float* est,
             int64_t stride) {
    const auto scan = bits == 8 ? scan_half<8> : bits == 4 ? scan_half<4> : bits == 2 ? scan_half<2> : scan_half<1>;
    for (int q = 0; q < n; ++q)
        for (int half = 0; half < 2; ++half)
            scan(block + half * 128, words, planes + q * words * (8 / bits) * 8, offset + 2 * q, step[q], scale + half * 32,
                 base == nullptr ? nullptr : base + half * 32, add[q], est + q * stride + half * 32);
}

// ---- queries side by side ----

// 16-bit products of bytes taken apart, because the 8-bit instruction saturates.
template <int L>
struct LaneOps;

template <>
struct LaneOps<8> : LaneMaths {
    static constexpr bool centred = false;
    struct X {
        __m256i even, odd;
    };
    static X take(const int8_t* from) {
        const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        return {_mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), _mm256_srai_epi16(x, 8)};
    }
    static I dots(I sum, uint32_t code, const X& x) {
        const __m256i even = _mm256_set1_epi32(static_cast<int>(code & 0x00FF00FF)), odd = _mm256_set1_epi32(static_cast<int>(code >> 8 & 0x00FF00FF));
        return sum + (I)_mm256_madd_epi16(even, x.even) + (I)_mm256_madd_epi16(odd, x.odd);
    }
};

#include "kernels/common/batch.inl"
#include "kernels/common/batch_8_wide.inl"
#include "kernels/common/table.inl"

}  // namespace

const uint64_t avx2_features = compiled_features();

const Kernels* avx2_kernels() {
    static constexpr Kernels table = table_of("avx2", scan_u8, dot_codes_of);
    return &table;
}

}  // namespace headlong
