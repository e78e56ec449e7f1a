// The column sums of adaptive/search.h for one instruction set; see adaptive/columns.inl.
#include <cstdint>
#include <cstring>

#include "adaptive/search.h"

namespace headlong {
namespace {

#define LANES 4
typedef float F __attribute__((vector_size(LANES * 4)));

#include "kernels/common/load_row.inl"

template <Kind K>
inline F load(const char* from) {
    F out;
    for (int i = 0; i < LANES; ++i) out[i] = one_float(from, K, i);
    return out;
}

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
