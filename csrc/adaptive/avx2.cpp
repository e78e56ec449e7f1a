// The column sums of adaptive/search.h for one instruction set; see adaptive/columns.inl.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "adaptive/search.h"

namespace headlong {
namespace {

#define LANES 8

#include "kernels/common/load_lanes.inl"

inline unsigned bits_above(F a, F b) { return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ))); }

#include "adaptive/columns.inl"

}  // namespace

const ColumnKernels* avx2_columns() {
    static const ColumnKernels table = {"avx2", moments, block, widths, largest, above};
    return &table;
}

}  // namespace headlong
