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

template <Kind K>
inline F load(const char* from) {
    F out;
    for (int i = 0; i < LANES; ++i) out[i] = one_float(from, K, i);
    return out;
}

#include "encode/kernels.inl"

}  // namespace

const EncodeKernels* portable_encoder() {
    static const EncodeKernels table = {"portable", LANES, narrow, turn, within, square, plane};
    return &table;
}

}  // namespace headlong
