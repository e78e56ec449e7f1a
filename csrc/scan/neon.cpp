// The scan on AArch64 as every processor has it.
#include <arm_neon.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/levels.h"
#include "scan/tiles.h"

namespace headlong {
namespace {

#include "scan/neon_shared.inl"

// Of four classes, the sums of two bytes each: of the first two classes, and of the others.
struct Sum {
    int32x4_t near, far;
};
template <int Bits> inline void dots(Sum& sum, const Q (&codes)[1], const int8x16_t (&fours)[1]) {
    const int8x16_t own = signed_codes<Bits>(codes[0]), x = fours[0];
    sum.near = vpadalq_s16(sum.near, vmull_s8(vget_low_s8(own), vget_low_s8(x)));
    sum.far = vpadalq_s16(sum.far, vmull_high_s8(own, x));
}
inline I total(const Sum& sum) { return (I)vpaddq_s32(sum.near, sum.far); }

#include "scan/estimate.inl"

}  // namespace

const ScanKernels* neon_scan() { return &kScan; }

}  // namespace headlong
