// The kernels that read rows, for rows of any kind: those in blocks of codes become float32 first, some at a time, and are then what
// stored float32 numbers would be, to the last bit and on every way that reads them.
#pragma once

#include <algorithm>

#include "kernels/kernels.h"
#include "runtime/prefetch.h"
#include "runtime/scratch.h"

namespace headlong {

constexpr int64_t kRowsAsFloats = 16;  // at once

// work(rows, first, count) with rows ids[first], ids[first + 1], ... (ids null: first, first + 1, ...) in float32.
template <typename Work>
void as_floats(const Kernels& k, const void* weight, Kind kind, int64_t dim, const int64_t* ids, int64_t n, const Work& work) {
    const int64_t bytes = row_bytes(kind, dim);
    const auto row_of = [&](int64_t i) { return static_cast<const uint8_t*>(weight) + (ids == nullptr ? i : ids[i]) * bytes; };
    Scratch<float> rows(static_cast<size_t>(std::min(n, kRowsAsFloats) * dim));
    for (int64_t first = 0; first < n; first += kRowsAsFloats) {
        const int64_t count = std::min(kRowsAsFloats, n - first);
        for (int64_t i = first; i < first + count; ++i) {
            if (ids != nullptr && i + 2 < n) prefetch(row_of(i + 2), bytes);
            k.row_floats(row_of(i), kind, dim, rows.data() + (i - first) * dim);
        }
        work(rows.data(), first, count);
    }
}

inline void dot_rows(const Kernels& k, const void* weight, Kind kind, int64_t dim, const int64_t* ids, int64_t n, const double* x, double* out) {
    if (!in_blocks_of_codes(kind)) return k.dot_rows(weight, kind, dim, ids, n, x, out);
    as_floats(k, weight, kind, dim, ids, n, [&](const float* rows, int64_t first, int64_t count) {
        k.dot_rows(rows, Kind::f32, dim, nullptr, count, x, out + first);
    });
}

inline void dot_block(const Kernels& k, const void* weight, Kind kind, int64_t dim, int64_t n, const double* x, int queries, double* scratch, double* out, int64_t stride) {
    if (!in_blocks_of_codes(kind)) return k.dot_block(weight, kind, dim, n, x, queries, scratch, out, stride);
    as_floats(k, weight, kind, dim, nullptr, n, [&](const float* rows, int64_t first, int64_t count) {
        k.dot_block(rows, Kind::f32, dim, count, x, queries, scratch, out + first, stride);
    });
}

// take(row, kind) with one row of a plain kind.
template <typename Take>
void with_row(const Kernels& k, const void* row, Kind kind, int64_t dim, const Take& take) {
    if (!in_blocks_of_codes(kind)) return take(row, kind);
    Scratch<float> numbers(static_cast<size_t>(dim));
    k.row_floats(row, kind, dim, numbers.data());
    take(static_cast<const void*>(numbers.data()), Kind::f32);
}

}  // namespace headlong
