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

#include "kernels/avx2_shared.inl"

// Half a block (32 classes) of one query.
template <int Bits>
void scan_half(const uint8_t* half, const uint8_t* ahead, int64_t words, const int8_t* planes, const int32_t* offset, float step,
               const float* scale, const float* base, float add, float* est) {
    constexpr int kGroups = 8 / Bits;
    const __m256i mask = _mm256_set1_epi8(static_cast<char>((1 << Bits) - 1));
    __m256i high[4], low[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) high[v] = low[v] = _mm256_setzero_si256();
    for (int64_t j = 0; j < words; ++j) {
        if (ahead != nullptr)  // as avx2 does
            for (int line = 0; line < 4; ++line) _mm_prefetch(reinterpret_cast<const char*>(ahead) + j * 256 + line * 64, _MM_HINT_T1);
        __m256i code[4];
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) code[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(half + j * 256 + v * 32));
#pragma GCC unroll 8
        for (int g = 0; g < kGroups; ++g) {
            int32_t x[2];
            std::memcpy(x, planes + (j * kGroups + g) * 8, 8);
            const __m256i x0 = _mm256_set1_epi32(x[0]), x1 = _mm256_set1_epi32(x[1]);
#pragma GCC unroll 4
            for (int v = 0; v < 4; ++v) {
                const __m256i u = Bits == 8 ? code[v] : _mm256_and_si256(_mm256_srli_epi32(code[v], g * Bits), mask);
                add_dots(high[v], u, x0);
                add_dots(low[v], u, x1);
            }
        }
    }
    __m256 dots[4];
    join_planes<Bits>(high, low, offset, dots);
    put_estimates(dots, step, scale, base, add, est);
}

void scan_u8(const uint8_t* block, int64_t words, int bits, const int32_t*, const int8_t* planes, const int32_t* offset,
             const float* step, const float* scale, const float* base, const float* add, int n, float* est,
             int64_t stride) {
    const ScanHalf scan = bits == 8 ? scan_half<8> : bits == 4 ? scan_half<4> : bits == 2 ? scan_half<2> : scan_half<1>;
    scan_halves(scan, block, words, bits, planes, offset, step, scale, base, add, n, est, stride);
}

template <int Bits>
inline void add_products(__m256i& sum, __m256i codes, __m256i x) { add_dots(sum, codes, x); }

// ---- queries side by side ----

#include "kernels/common/batch_maths_8_wide.inl"

template <int L>
struct LaneOps;

template <>
struct LaneOps<8> : LaneMaths {
    static constexpr bool centred = false;
    using X = __m256i;
    static X take(const int8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
    static I dots(I sum, uint32_t code, X x) {
        __m256i all = (__m256i)sum;
        add_dots(all, _mm256_set1_epi32(static_cast<int>(code)), x);
        return (I)all;
    }
};

#include "kernels/common/batch.inl"
#include "kernels/common/batch_8_wide.inl"

}  // namespace

const uint64_t avxvnni_features = compiled_features();

const Kernels* avxvnni_kernels() {
    static const Kernels table = [] {
        Kernels own = *avx2_kernels();
        own.isa = "avxvnni", own.scan_u8 = scan_u8, own.dot_codes = dot_codes, own.batch_scan = batch_scan, own.scan_one = nullptr, own.code_product = 0.7;
        return own;
    }();
    return &table;
}

}  // namespace headlong
