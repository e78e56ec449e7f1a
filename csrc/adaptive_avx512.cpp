// The column sums of adaptive.cpp for one instruction set; see adaptive_columns.inl.
#include <cstdint>

#include "adaptive.h"

namespace headlong {
namespace {

#include "adaptive_columns.inl"

}  // namespace

const ColumnKernels* avx512_columns() {
    static const ColumnKernels table = {"avx512vnni", moments, block};
    return &table;
}

}  // namespace headlong
