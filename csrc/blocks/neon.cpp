// The looks of blocks/looks.h for one instruction set; see blocks/looks.inl.
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "blocks/looks.h"
#include "kernels/levels.h"

namespace headlong {
namespace {

#include "blocks/wide.inl"

typedef Two<Two<F4>> F16;
typedef Two<Two<I4>> I16;

inline F16 joined(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d) { return {{(F4)a, (F4)b}, {(F4)c, (F4)d}}; }
inline F16 floats(Codes16 codes) {
    const int16x8_t low = vmovl_s8(vget_low_s8((int8x16_t)codes)), high = vmovl_high_s8((int8x16_t)codes);
    return joined(vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
                  vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high)));
}
inline F16 floats(Lengths16 lengths) {
    const uint16x8_t low = vmovl_u8(vget_low_u8((uint8x16_t)lengths)), high = vmovl_high_u8((uint8x16_t)lengths);
    return joined(vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_high_u16(low)),
                  vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), vcvtq_f32_u32(vmovl_high_u16(high)));
}

inline uint32_t reaching(const float* upper, float tau) {
    const uint32x4_t place = {1, 2, 4, 8};
    const float32x4_t edge = vdupq_n_f32(tau);
    uint32_t bits = 0;
    for (int c = 0; c < kNeighbours; c += 4) bits |= vaddvq_u32(vandq_u32(vcgeq_f32(vld1q_f32(upper + c), edge), place)) << c;
    return bits;
}

#include "blocks/one_by_one.inl"
#include "blocks/looks.inl"

}  // namespace

const Looks* neon_looks() { return &kLooks; }

}  // namespace headlong
