// AArch64 with SDOT: products of four pairs of signed bytes join a sum of 32 bits.
#include <arm_neon.h>

#include <cmath>
#include <cstring>

#include "kernels/cpu.h"
#include "kernels/kernels.h"

namespace headlong {
namespace {

#include "kernels/common/aarch64.inl"

struct Dots {
    using Codes = uint8x16_t;
    using X = int8x16_t;
    using Sum = int32x4_t;
    static constexpr int registers = 1;
    static constexpr int most = 2;
    static constexpr bool centred = true;

    static X load(const int8_t* planes) { return vld1q_s8(planes); }
    static X half(const int8_t* planes) { return vcombine_s8(vld1_s8(planes), vdup_n_s8(0)); }
    static X raise(X x) { return veorq_s8(x, vdupq_n_s8(-128)); }
    template <int Bits, int Group>
    static Codes take(Codes word) {
        return Bits == 8 ? veorq_u8(word, vdupq_n_u8(128)) : codes_of<Bits, Group>(word);
    }
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
    template <int M>
    static void vectors(const uint8_t*& from, int64_t next, Codes (&to)[M]) { load_vectors<M>(from, next, to); }
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

}  // namespace

const uint64_t dotprod_features = compiled_features();

const Kernels* dotprod_kernels() {
    static const Kernels table = {
        "dotprod", scan_u8, dense_rows, dense_tile, dot_rows, dot_floats, dot_block, sum_exps_of, rotate_of, widen_of,
        largest_double_of, dot_codes, radius_of, largest_of, largest_there_of, interval_sums_of, interval_exps_of,
        gaps_of, sides_of, split_of, lower_above_of, survivors_of, noise_of, gumbel_keys_of, encode_row_of, row_norm_of,
        link_lse_of, link_at_of, link_gradient_of, batch_scan, batch_weigh, batch_largest, batch_sums, read_of, nullptr, true};
    return &table;
}

}  // namespace headlong
