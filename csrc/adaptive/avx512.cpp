// The column sums of adaptive/search.h for one instruction set; see adaptive/columns.inl.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "adaptive/search.h"

namespace headlong {
namespace {

#define LANES 16

#include "kernels/common/load_lanes.inl"

inline unsigned bits_above(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }

#include "adaptive/columns.inl"

}  // namespace

const ColumnKernels* avx512_columns() {
    static const ColumnKernels table = {"avx512vnni", moments, block, widths, largest, above};
    return &table;
}

}  // namespace headlong
