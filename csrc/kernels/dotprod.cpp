// AArch64 with SDOT: products of four pairs of signed bytes join a sum of 32 bits.
#include <arm_neon.h>

#include <cmath>
#include <cstring>

#include "kernels/cpu.h"
#include "kernels/kernels.h"

namespace headlong {
namespace {

#include "kernels/common/aarch64.inl"

struct Dots : RaisedBytes {
    using Sum = int32x4_t;
    static constexpr int registers = 1;
    static constexpr int most = 2;
    template <int At>
    static void add(Sum& sum, Codes codes, X x) {
        sum = (int32x4_t)vdotq_laneq_u32((uint32x4_t)sum, codes, (uint8x16_t)x, At);
    }
    static I total(Sum sum) { return (I)sum; }
};

#include "kernels/common/scan_codes_4_wide.inl"

#include "kernels/common/table.inl"

}  // namespace

const uint64_t dotprod_features = compiled_features();

const Kernels* dotprod_kernels() {
    static constexpr Kernels table = table_of("dotprod", scan_u8, 0.4, true);
    return &table;
}

}  // namespace headlong
