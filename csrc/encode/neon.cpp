// The encoder of encode/task.h for one instruction set; see encode/kernels.inl.
#include <arm_neon.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "encode/task.h"

namespace headlong {
namespace {

#define LANES 4
#define NEON
#define ROWS 8
#define FUSED(a, b, c) (F) vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b))

#include "kernels/common/load_lanes.inl"

#include "encode/kernels.inl"

}  // namespace

const EncodeKernels* neon_encoder() {
    static const EncodeKernels table = {"neon", LANES, narrow, rotate, within, square, code};
    return &table;
}

}  // namespace headlong
