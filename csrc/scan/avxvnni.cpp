// The scan with AVX2 and VNNI in VEX: what client processors without AVX-512 have.
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/levels.h"
#include "scan/tiles.h"

namespace headlong {
namespace {

#include "scan/avx2.inl"

constexpr bool kSigned = false;

// As an instruction: GCC 12 copies and spills the sums around the intrinsic.
template <int Bits> inline void dots(Sum& sum, const Q (&codes)[1], const Q (&x)[1]) {
#ifdef __clang__
    sum = _mm256_dpbusd_avx_epi32(sum, codes[0], x[0]);
#elif defined(__AVXVNNI__)
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(codes[0]), "x"(x[0]));
#else
    __asm__("vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(codes[0]), "x"(x[0]));
#endif
}

constexpr int JOINED(int) { return 1; }
constexpr int ROWS(int lanes, int) { return lanes; }

#include "scan/estimate.inl"

}  // namespace

const ScanKernels* avxvnni_scan() { return &kScan; }

}  // namespace headlong
