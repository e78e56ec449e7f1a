// The scan on AArch64 with dot products of bytes.
#include <arm_neon.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/levels.h"
#include "scan/tiles.h"

namespace headlong {
namespace {

#include "scan/neon_shared.inl"

typedef int32x4_t Sum;
template <int Bits> inline void dots(Sum& sum, const Q (&codes)[1], const int8x16_t (&x)[1]) { sum = vdotq_s32(sum, signed_codes<Bits>(codes[0]), x[0]); }
inline I total(Sum sum) { return (I)sum; }

#include "scan/estimate.inl"

}  // namespace

const ScanKernels* dotprod_scan() { return &kScan; }

}  // namespace headlong
