// The column sums of adaptive/search.h for one instruction set; see adaptive/columns.inl.
#include <cstdint>
#include <cstring>

#include "adaptive/search.h"

namespace headlong {
namespace {

#define LANES 4
#define PLAIN

#include "kernels/common/load_lanes.inl"

inline unsigned bits_above(F a, F b) {
    unsigned bits = 0;
    for (int i = 0; i < LANES; ++i) bits |= static_cast<unsigned>(a[i] > b[i]) << i;
    return bits;
}

#include "adaptive/columns.inl"

}  // namespace

const ColumnKernels* portable_columns() {
    static const ColumnKernels table = {"portable", moments, block, widths, largest, above};
    return &table;
}

}  // namespace headlong
