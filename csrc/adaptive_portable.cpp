// The column sums of adaptive.cpp for one instruction set; see adaptive_columns.inl.
#include <cstdint>

#include "adaptive.h"

namespace headlong {
namespace {

#include "adaptive_columns.inl"

}  // namespace

const ColumnKernels* portable_columns() {
    static const ColumnKernels table = {"portable", moments, block};
    return &table;
}

}  // namespace headlong
