// The scan with AVX2: products of bytes join 16 bits in pairs, which codes of at most 6 bits do not overflow; those of 8 bits go as signed numbers.
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "kernels/levels.h"
#include "scan/tiles.h"

namespace headlong {
namespace {

#include "scan/avx2.inl"

constexpr bool kSigned = true;

template <int Bits> inline void dots(Sum& sum, Q codes, Q x) {
    __m256i pairs;
    if constexpr (Bits == 8) pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(_mm256_xor_si256(codes, bytes_of(128)), x));
    else pairs = _mm256_maddubs_epi16(codes, x);
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

#include "scan/estimate.inl"

}  // namespace

const ScanKernels* avx2_scan() { return &kScan; }

}  // namespace headlong
