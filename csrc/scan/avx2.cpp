// The scan with AVX2: products of bytes join 16 bits in pairs, which codes of at most 6 bits do not overflow; those of 8 bits go as signed numbers.
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/levels.h"
#include "scan/tiles.h"

namespace headlong {
namespace {

#include "scan/avx2.inl"

constexpr bool kSigned = true;

// Two quads' sums of two products of a code below 64 and a byte of at most 127 fit 16 bits.
constexpr int JOINED(int bits) { return bits == 8 ? 1 : 2; }
// Of plain bytes four queries by two registers: what is made of a query's bytes serves both.
constexpr int ROWS(int lanes, int bits) { return bits == 8 && lanes > 4 ? 4 : lanes; }

template <int Bits> inline void dots(Sum& sum, const Q (&codes)[JOINED(Bits)], const Q (&x)[JOINED(Bits)]) {
    __m256i pairs;
    if constexpr (Bits == 8) {
        pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(x[0]), _mm256_sign_epi8(_mm256_xor_si256(codes[0], bytes_of(128)), x[0]));
    } else {
        pairs = _mm256_maddubs_epi16(codes[0], x[0]);
        for (int i = 1; i < JOINED(Bits); ++i) pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(codes[i], x[i]));
    }
    const __m256i more = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    __asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(more));  // as an instruction: GCC 12 keeps all products of a group in memory, and sums them after it
}

#include "scan/estimate.inl"

}  // namespace

const ScanKernels* avx2_scan() { return &kScan; }

}  // namespace headlong
