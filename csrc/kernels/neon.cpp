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
struct Dots : SignedBytes {
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
        multiply(sum, (int8x16_t)codes, (int8x16_t)vdupq_laneq_s32((int32x4_t)x, At));
    }
    template <int At>
    static void add_raised(Sum& sum, Codes codes, X x) {
        const uint8x16_t four = (uint8x16_t)vdupq_laneq_s32((int32x4_t)x, At);
        sum.near = (int32x4_t)vpadalq_u16((uint32x4_t)sum.near, vmull_u8(vget_low_u8(codes), vget_low_u8(four)));
        sum.far = (int32x4_t)vpadalq_u16((uint32x4_t)sum.far, vmull_high_u8(codes, four));
    }
    static void add_all(Sum& sum, Codes codes, const int8_t* planes) { multiply(sum, (int8x16_t)codes, vld1q_s8(planes)); }
    static I total(const Sum& sum) { return (I)vpaddq_s32(sum.near, sum.far); }
};

#include "kernels/common/scan_codes_4_wide.inl"

// ---- queries side by side ----

template <int L>
struct LaneOps;

template <>
struct LaneOps<4> : LaneMaths {
    using X = int8x16_t;
    static constexpr bool centred = true;
    static X take(const int8_t* from) { return vld1q_s8(from); }
    // Two products of a code and of a number within 127 fit 16 bits.
    static I dots(I sum, uint32_t code, X x) {
        const int8x8_t codes = (int8x8_t)vdup_n_u32(code);
        const int16x8_t near = vmull_s8(codes, vget_low_s8(x)), far = vmull_s8(codes, vget_high_s8(x));
        return (I)vpadalq_s16((int32x4_t)sum, vpaddq_s16(near, far));
    }
};

#include "kernels/common/batch.inl"
#include "kernels/common/batch_4_wide.inl"
#include "kernels/common/table.inl"

}  // namespace

const Kernels* neon_kernels() {
    static constexpr Kernels table = table_of("neon", scan_u8, dot_codes, 2, true);
    return &table;
}

}  // namespace headlong
