// AArch64 with SDOT: products of four pairs of signed bytes join a sum of 32 bits.
#include <arm_neon.h>

#include <cmath>
#include <cstring>

#include "kernels/cpu.h"
#include "kernels/kernels.h"

namespace headlong {
namespace {

#include "kernels/common/aarch64.inl"

struct Dots : SignedBytes {
    using Sum = int32x4_t;
    static constexpr int registers = 1;
    static constexpr int most = 2;
    template <int At>
    static void add(Sum& sum, Codes codes, X x) {
        sum = vdotq_laneq_s32(sum, (int8x16_t)codes, x, At);
    }
    template <int At>
    static void add_raised(Sum& sum, Codes codes, X x) {
        sum = (int32x4_t)vdotq_laneq_u32((uint32x4_t)sum, codes, (uint8x16_t)x, At);
    }
    static void add_all(Sum& sum, Codes codes, const int8_t* planes) { sum = vdotq_s32(sum, (int8x16_t)codes, vld1q_s8(planes)); }
    static I total(Sum sum) { return (I)sum; }
};

#include "kernels/common/scan_codes_4_wide.inl"

// ---- queries side by side ----

template <int L>
struct LaneOps;

template <>
struct LaneOps<4> : LaneMaths {
    using X = int8x16_t;
    static constexpr bool centred = true;
    static X take(const int8_t* from) { return vld1q_s8(from); }
    static I dots(I sum, uint32_t code, X x) { return (I)vdotq_s32((int32x4_t)sum, (int8x16_t)vdupq_n_u32(code), x); }
};

#include "kernels/common/batch.inl"
#include "kernels/common/batch_4_wide.inl"
#include "kernels/common/table.inl"

}  // namespace

const uint64_t dotprod_features = compiled_features();

const Kernels* dotprod_kernels() {
    static constexpr Kernels table = table_of("dotprod", scan_u8, dot_codes, 0.4, true);
    return &table;
}

}  // namespace headlong
