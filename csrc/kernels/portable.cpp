// The reference of the grid: plain loops for any CPU, always built.
#include <cmath>
#include <cstring>

#include "kernels/kernels.h"

namespace headlong {
namespace {

#define LANES 4
#include "kernels/common/all.inl"

const char* row_at(const void* rows, Kind kind, int64_t dim, int64_t r) {
    return static_cast<const char*>(rows) + r * dim * item_bytes(kind);
}

void dense_rows(const void* rows, Kind kind, int64_t dim, int64_t count, const float* x, int n, float* out,
                int64_t stride) {
    for (int64_t r = 0; r < count; ++r) {
        const char* row = row_at(rows, kind, dim, r);
        for (int q = 0; q < n; ++q) {
            float sum = 0;
            for (int64_t start = 0; start < dim; start += kTileChunk) {
                int64_t stop = start + kTileChunk < dim ? start + kTileChunk : dim;
                float part = 0;
                for (int64_t j = start; j < stop; ++j) part += one_float(row, kind, j) * x[q * query_stride(dim) + j];
                sum += part;
            }
            out[q * stride + r] = sum;
        }
    }
}

void dot_rows(const void* weight, Kind kind, int64_t dim, const int64_t* ids, int64_t n, const double* x, double* out) {
    for (int64_t i = 0; i < n; ++i) {
        const char* row = row_at(weight, kind, dim, ids == nullptr ? i : ids[i]);
        double sum = 0;
        for (int64_t j = 0; j < dim; ++j) sum += static_cast<double>(one_float(row, kind, j)) * x[j];
        out[i] = sum;
    }
}

void dot_floats(const void* weight, Kind kind, int64_t dim, const int32_t* ids, int64_t n, const float* x, float* out) {
    for (int64_t i = 0; i < n; ++i) {
        const char* row = row_at(weight, kind, dim, ids[i]);
        float sum[32] = {}, all = 0;
        for (int64_t j = 0; j < dim; ++j) sum[j % 32] += one_float(row, kind, j) * x[j];
        for (float part : sum) all += part;
        out[i] = all;
    }
}

// The reference: one query after the other, as dot_rows.
void dot_block(const void* rows, Kind kind, int64_t dim, int64_t count, const double* x, int n, double*, double* out,
               int64_t stride) {
    const int64_t wide = (dim + kWide - 1) / kWide * kWide;
    for (int q = 0; q < n; ++q) dot_rows(rows, kind, dim, nullptr, count, x + q * wide, out + q * stride);
}

#include "kernels/common/table.inl"

}  // namespace

const Kernels* portable_kernels() {
    static constexpr Kernels table = table_of("portable");
    return &table;
}

}  // namespace headlong
