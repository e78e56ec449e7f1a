// The encoder of encode/encode.h for one instruction set; see encode/kernels.inl.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "encode/encode.h"

namespace headlong {
namespace {

#define LANES 4
#define ROWS 4
typedef float F __attribute__((vector_size(LANES * 4)));

#include "kernels/common/load_row.inl"
#include "kernels/common/load_row_4_wide.inl"

template <Kind K>
inline F load(const char* from) {
    return four_entries<K>(from);
}

#include "encode/kernels.inl"

}  // namespace

const EncodeKernels* generic_encoder() {
    static const EncodeKernels table = {"generic", LANES, narrow, turn, within, square, plane};
    return &table;
}

}  // namespace headlong
