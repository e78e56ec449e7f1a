// AVX2 with VNNI in VEX: what client processors without AVX-512 have. Products of codes alone differ; the rest is avx2's own code.
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "kernels/cpu.h"
#include "kernels/kernels.h"

namespace headlong {
namespace {

// sum += <four codes, four signed bytes> in each lane, as an instruction: GCC 12 copies and spills the sums around the intrinsic.
// A test on a processor that has it in AVX-512's encoding alone is compiled for that.
inline void add_dots(__m256i& sum, __m256i codes, __m256i x) {
#ifdef __clang__
    sum = _mm256_dpbusd_avx_epi32(sum, codes, x);
#elif defined(__AVXVNNI__)
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(codes), "x"(x));
#else
    __asm__("vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(codes), "x"(x));
#endif
}

// Half a block (32 classes) of one query; `ahead`: the lines of the whole block, some way ahead.
void scan_half(const uint8_t* half, const uint8_t* ahead, int64_t words, const int8_t* planes, const int32_t* offset, float step,
               const float* scale, const float* base, float add, float* est) {
    __m256i high[4], low[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) high[v] = low[v] = _mm256_setzero_si256();
    for (int64_t j = 0; j < words; ++j) {
        if (ahead != nullptr)  // as avx2 does
            for (int line = 0; line < 4; ++line) _mm_prefetch(reinterpret_cast<const char*>(ahead) + j * 256 + line * 64, _MM_HINT_T1);
        int32_t x[2];
        std::memcpy(x, planes + j * 8, 8);
        const __m256i x0 = _mm256_set1_epi32(x[0]), x1 = _mm256_set1_epi32(x[1]);
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) {
            const __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(half + j * 256 + v * 32));
            add_dots(high[v], code, x0);
            add_dots(low[v], code, x1);
        }
    }
    const __m256i o0 = _mm256_set1_epi32(offset[0]), o1 = _mm256_set1_epi32(offset[1]);
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v, scale += 8, est += 8) {
        const __m256 a = _mm256_cvtepi32_ps(_mm256_sub_epi32(high[v], o0)), b = _mm256_cvtepi32_ps(_mm256_sub_epi32(low[v], o1));
        const __m256 dots = _mm256_fmadd_ps(a, _mm256_set1_ps(256.f), b), unit = _mm256_mul_ps(_mm256_loadu_ps(scale), _mm256_set1_ps(step));
        const __m256 start = base == nullptr ? _mm256_loadu_ps(est) : _mm256_add_ps(_mm256_loadu_ps(base + 8 * v), _mm256_set1_ps(add));
        _mm256_storeu_ps(est, _mm256_fmadd_ps(dots, unit, start));
    }
}

void scan_u8(const uint8_t* block, int64_t words, const int32_t*, const int8_t* planes, const int32_t* offset, const float* step,
             const float* scale, const float* base, const float* add, int n, float* est, int64_t stride) {
    for (int q = 0; q < n; ++q)
        for (int half = 0; half < 2; ++half)
            scan_half(block + half * 128, q + half == 0 ? block + kReadAhead : nullptr, words, planes + q * words * 8, offset + 2 * q, step[q],
                      scale + half * 32, base == nullptr ? nullptr : base + half * 32, add[q], est + q * stride + half * 32);
}

}  // namespace

const uint64_t avxvnni_features = compiled_features();

const Kernels* avxvnni_kernels() {
    static const Kernels table = [] {
        Kernels own = *avx2_kernels();
        own.isa = "avxvnni", own.scan_u8 = scan_u8, own.scan_one = nullptr, own.code_product = 0.7;
        return own;
    }();
    return &table;
}

}  // namespace headlong
