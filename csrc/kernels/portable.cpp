// The vector types of the compiler for the baseline that it compiles for: what any processor runs, and the reference of the grid.
#include <cmath>
#include <cstring>

#include "kernels/kernels.h"
#include "kernels/levels.h"

namespace headlong {
namespace {

#define LANES 4
#include "kernels/common/all.inl"

template <Kind K>
inline F load_some(const void* row, int64_t j) {
    return four_entries<K>(static_cast<const char*>(row) + j * item_bytes(K));
}
inline D low_half(F v) { return D{v[0], v[1]}; }
inline D high_half(F v) { return D{v[2], v[3]}; }
inline F fused(F a, F b, F c) { return a * b + c; }

constexpr int kQueries = 4, kRowsFor[] = {0, 8, 8, 4, 4};
#include "kernels/common/row_products.inl"

#include "kernels/common/table.inl"

}  // namespace

const Kernels* portable_kernels() {
    static constexpr Kernels table = own_table();
    return &table;
}

}  // namespace headlong
