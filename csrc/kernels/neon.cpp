// AArch64 as every processor has it: bytes are multiplied into 16 bits, whose pairs join sums of 32.
#include <arm_neon.h>

#include <cmath>
#include <cstring>

#include "kernels/cpu.h"
#include "kernels/kernels.h"

namespace headlong {
namespace {

#include "kernels/common/aarch64.inl"

// Of four classes, the sums of bytes 0, 1 and 2, 3: of the first two classes, and of the others.
struct Dots : RaisedBytes {
    struct Sum {
        int32x4_t near, far;
    };
    static constexpr int registers = 2;
    static constexpr int most = 4;
    static void multiply(Sum& sum, int8x16_t codes, int8x16_t x) {
        sum.near = vpadalq_s16(sum.near, vmull_s8(vget_low_s8(codes), vget_low_s8(x)));
        sum.far = vpadalq_s16(sum.far, vmull_high_s8(codes, x));
    }
    template <int At>
    static void add(Sum& sum, Codes codes, X x) {
        const uint8x16_t four = (uint8x16_t)vdupq_laneq_s32((int32x4_t)x, At);
        sum.near = (int32x4_t)vpadalq_u16((uint32x4_t)sum.near, vmull_u8(vget_low_u8(codes), vget_low_u8(four)));
        sum.far = (int32x4_t)vpadalq_u16((uint32x4_t)sum.far, vmull_high_u8(codes, four));
    }
    static I total(const Sum& sum) { return (I)vpaddq_s32(sum.near, sum.far); }
};

#include "kernels/common/scan_codes_4_wide.inl"

#include "kernels/common/table.inl"

}  // namespace

const Kernels* neon_kernels() {
    static constexpr Kernels table = table_of("neon", scan_u8, 2, true);
    return &table;
}

}  // namespace headlong
