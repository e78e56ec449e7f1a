// The encoder of encode/encode.h for one instruction set; see encode/kernels.inl.
#include <arm_neon.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "encode/encode.h"

namespace headlong {
namespace {

#define LANES 4
#define ROWS 8
#define FUSED(a, b, c) (F) vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b))
typedef float F __attribute__((vector_size(LANES * 4)));

#include "kernels/common/load_row.inl"

template <Kind K>
inline F load(const char* from) {
    if (K == Kind::f32) return (F)vld1q_f32(reinterpret_cast<const float*>(from));
    const uint16x4_t half = vld1_u16(reinterpret_cast<const uint16_t*>(from));
    return K == Kind::f16 ? (F)vcvt_f32_f16((float16x4_t)half) : (F)vshll_n_u16(half, 16);
}

#include "encode/kernels.inl"

}  // namespace

const EncodeKernels* neon_encoder() {
    static const EncodeKernels table = {"neon", LANES, narrow, turn, within, square, plane};
    return &table;
}

}  // namespace headlong
