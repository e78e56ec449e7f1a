// The encoder of encode/task.h for one instruction set; see encode/kernels.inl.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "encode/task.h"

namespace headlong {
namespace {

#define LANES 4
#define ROWS 4

#include "kernels/common/load_lanes.inl"

#include "encode/kernels.inl"

}  // namespace

const EncodeKernels* generic_encoder() {
    static const EncodeKernels table = {"generic", LANES, narrow, rotate, within, square, code};
    return &table;
}

}  // namespace headlong
