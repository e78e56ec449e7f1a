// The column sums of adaptive/search.h for one instruction set; see adaptive/columns.inl.
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "adaptive/search.h"

namespace headlong {
namespace {

#define LANES 4
typedef float F __attribute__((vector_size(LANES * 4)));

template <Kind K>
inline F load(const char* from) {
    if (K == Kind::f32) return (F)vld1q_f32(reinterpret_cast<const float*>(from));
    const uint16x4_t half = vld1_u16(reinterpret_cast<const uint16_t*>(from));
    return K == Kind::f16 ? (F)vcvt_f32_f16((float16x4_t)half) : (F)vshll_n_u16(half, 16);
}

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
