// AArch64 as every processor has it. Compiled without contraction: what follows a scan is the reference's to the bit. Products of rows
// are fused.
#include <arm_neon.h>

#include <cmath>
#include <cstring>

#include "kernels/kernels.h"
#include "kernels/levels.h"

namespace headlong {
namespace {

#define LANES 4
#define ANY(mask) (vmaxvq_u32((uint32x4_t)(mask)) != 0)
#define FUSED(a, b, c) (D) vfmaq_f64((float64x2_t)(c), (float64x2_t)(a), (float64x2_t)(b))
#define GATHER_PAIRS(table, at, out)                                                                                     \
    do {                                                                                                                 \
        const float32x4_t near = vcombine_f32(vld1_f32((table) + 2 * (at)[0]), vld1_f32((table) + 2 * (at)[1]));         \
        const float32x4_t far = vcombine_f32(vld1_f32((table) + 2 * (at)[2]), vld1_f32((table) + 2 * (at)[3]));          \
        (out).first = (F)vuzp1q_f32(near, far);                                                                          \
        (out).second = (F)vuzp2q_f32(near, far);                                                                         \
    } while (false)
#define WIDEN_HALVES(p) widen_halves(p)

typedef double Halves __attribute__((vector_size(16)));
inline Halves widen_halves(const uint16_t* p) {
    uint32_t both;
    std::memcpy(&both, p, sizeof both);
    const float16x4_t half = (float16x4_t)vdup_n_u32(both);
    return (Halves)vcvt_f64_f32(vget_low_f32(vcvt_f32_f16(half)));
}

#include "kernels/common/all.inl"

template <Kind K>
inline F load_some(const void* row, int64_t j) {
    if (K == Kind::f32) return (F)vld1q_f32(static_cast<const float*>(row) + j);
    const uint16x4_t half = vld1_u16(static_cast<const uint16_t*>(row) + j);
    if (K == Kind::f16) return (F)vcvt_f32_f16((float16x4_t)half);
    return (F)vshll_n_u16(half, 16);
}
inline D low_half(F v) { return (D)vcvt_f64_f32(vget_low_f32((float32x4_t)v)); }
inline D high_half(F v) { return (D)vcvt_high_f64_f32((float32x4_t)v); }
inline F fused(F a, F b, F c) { return (F)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }

constexpr int kQueries = 4, kRowsFor[] = {0, 8, 8, 4, 4};
#include "kernels/common/row_products.inl"

#include "kernels/common/table.inl"

}  // namespace

const Kernels* neon_kernels() {
    static constexpr Kernels table = own_table();
    return &table;
}

}  // namespace headlong
