// The vector types of the compiler for the baseline that it compiles for: no processor is left with plain loops.
#include <cmath>
#include <cstring>

#include "kernels/cpu.h"
#include "kernels/kernels.h"

namespace headlong {
namespace {

#define LANES 4
#include "kernels/common/all.inl"

template <Kind K>
inline F load4(const void* row, int64_t j) {
    return four_entries<K>(static_cast<const char*>(row) + j * item_bytes(K));
}
inline D low_half(F v) { return D{v[0], v[1]}; }
inline D high_half(F v) { return D{v[2], v[3]}; }
inline F fused(F a, F b, F c) { return a * b + c; }

#include "kernels/common/row_products_4_wide.inl"

#include "kernels/common/table.inl"

}  // namespace

const Kernels* generic_kernels() {
    static constexpr Kernels table = table_of("generic");
    return &table;
}

}  // namespace headlong
