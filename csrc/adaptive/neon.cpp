// The column sums of adaptive/search.h for one instruction set; see adaptive/columns.inl.
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "adaptive/search.h"

namespace headlong {
namespace {

#define LANES 4
#define NEON

#include "kernels/common/load_lanes.inl"

inline unsigned bits_above(F a, F b) {
    const uint32x4_t place = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32((uint32x4_t)(a > b), place));
}

#include "adaptive/columns.inl"

}  // namespace

const ColumnKernels* neon_columns() {
    static const ColumnKernels table = {"neon", moments, block, widths, largest, above};
    return &table;
}

}  // namespace headlong
