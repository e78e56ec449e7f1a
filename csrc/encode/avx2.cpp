// The encoder of encode/task.h for one instruction set; see encode/kernels.inl.
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "encode/task.h"

namespace headlong {
namespace {

#define LANES 8
#define ROWS 4
#define FUSED(a, b, c) _mm256_fmadd_ps(a, b, c)

#include "kernels/common/load_lanes.inl"

#include "encode/kernels.inl"

}  // namespace

const EncodeKernels* avx2_encoder() {
    static const EncodeKernels table = {"avx2", LANES, narrow, rotate, within, square, code};
    return &table;
}

}  // namespace headlong
