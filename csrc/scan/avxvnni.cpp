// The scan with AVX2 and VNNI in VEX: what client processors without AVX-512 have.
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "kernels/levels.h"
#include "scan/tiles.h"

namespace headlong {
namespace {

#include "scan/avx2.inl"

constexpr bool kSigned = false;

// As an instruction: GCC 12 copies and spills the sums around the intrinsic.
template <int Bits> inline void dots(Sum& sum, Q codes, Q x) {
#ifdef __clang__
    sum = _mm256_dpbusd_avx_epi32(sum, codes, x);
#elif defined(__AVXVNNI__)
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(codes), "x"(x));
#else
    __asm__("vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(codes), "x"(x));
#endif
}

#include "scan/estimate.inl"

}  // namespace

const ScanKernels* avxvnni_scan() { return &kScan; }

}  // namespace headlong
