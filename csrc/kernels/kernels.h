// The grid of kernels: operation x instruction set.
//
// Kernels take plain pointers; they never allocate, start threads or throw. One translation unit per instruction
// set (kernels/portable.cpp, kernels/avx2.cpp, kernels/neon.cpp, ...) fills one Kernels table; kernels/levels.h hands out the table.
// Per-class arrays are padded to a multiple of 64 classes, so every `n` below is a multiple of 64.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/stored_types.h"

namespace headlong {

constexpr int64_t kBlock = 64;     // classes of a block: what every per-class array is padded to
constexpr int kRowQueries = 8;     // queries that dense_rows takes at once
constexpr int64_t kWide = 32;      // coordinates that dot_block takes at once

// ceil(n / kBlock) * kBlock: classes, made up to whole blocks.
constexpr int64_t in_blocks(int64_t n) { return (n + kBlock - 1) / kBlock * kBlock; }

// From a query of dense_rows to the next.
constexpr int64_t query_stride(int64_t dim) { return (dim + 15) / 16 * 16; }

// What a link lowers to; gss is for losses alone. Their names, in this order, are those of links/base.py.
enum class LinkForm : int { affine, softcap, table, gss };
constexpr const char* kLinkForms[] = {"affine", "softcap", "table", "gss"};

// An increasing map on logits: a * z + b ; a * tanh(z / a) ; a table, straight between knots, a the steepest slope.
// Cell 0 of a table is what lies below the first knot, cell i what lies above knot i - 1; f = base + slope * (z - knot),
// and the knot of cell 0 lies one step below the first. `slop`: how far float32 can be off the real f, the table's own
// error included.
struct Link {
    LinkForm form;
    float a, b;
    const float* table = nullptr;  // base and slope of cell 0, of cell 1, ...
    float start = 0, step = 1, inverse = 1, cells = 0, slop = 0;  // cells: those between two knots
};

// The first two forms in float64, of `a` and `b` before they were rounded.
inline double linked(LinkForm form, double a, double b, double z) { return form == LinkForm::affine ? z * a + b : a * std::tanh(z / a); }

struct Kernels {
    int lanes;  // sums that dense_rows has of each product: every one of them is a rounding off for each of its coordinates
    // out[q * stride + r] = <row r, x_q> in float32, for rows x n <= 64 x kRowQueries: the same number whatever n is. x [n][query_stride(dim)]
    // with zeros beyond dim, from a border of 64 bytes on: loads that cross one cost two.
    void (*dense_rows)(const void* rows, Kind kind, int64_t dim, int64_t count, const float* x, int n, float* out,
                       int64_t stride);

    // out[j] = <row ids[j], x>, accumulated in float64; ids == nullptr: rows 0..n-1 of `weight`.
    void (*dot_rows)(const void* weight, Kind kind, int64_t dim, const int64_t* ids, int64_t n, const double* x,
                     double* out);

    // out[q * stride + r] = <row r, x_q> for rows x n, each to the bit what dot_rows says. wide = dim rounded up to a multiple
    // of kWide, x = [n][wide] with zeros beyond dim; scratch holds [count][wide].
    void (*dot_block)(const void* rows, Kind kind, int64_t dim, int64_t count, const double* x, int n, double* scratch,
                      double* out, int64_t stride);

    // sum_i exp(f[i] - shift) in float64, each term within 2^-50 relatively, those below exp(-700) taken for 0.
    double (*sum_exps)(const double* f, int64_t n, double shift);

    // out[i] = sum_j x[j] * matrix[j * n + i] for i < n, in float64; the matrix is float32 or float16.
    void (*rotate)(const void* matrix, Kind kind, int64_t dim, int64_t n, const double* x, double* out);

    // n numbers in float64; returns the size of the largest, infinity where one is not finite. The second writes none.
    double (*widen)(const void* values, Kind kind, int64_t n, double* out);
    double (*largest_double)(const double* values, int64_t n);

    // out[i] = 2^-100 + norms[i] * term + fixed[i] (null: none) of n classes; the largest is returned.
    float (*radius)(const float* norms, const float* fixed, float term, int64_t n, float* out);

    // Largest est of the classes whose byte in `mask` is not 0 (null: of all); the estimates of the others become -inf. `finite` is cleared
    // where an estimate is not a number below 1e30.
    float (*largest)(float* est, const uint8_t* mask, int64_t n, bool* finite);

    // low <= sum exp(link(est - rad) * beta - shift), high >= sum exp(link(est + rad) * beta - shift), added up;
    // `most` is the largest radius; high is infinite where a term is beyond exp(87).
    // centre += the sum at est.
    struct Sums {
        double low, high, centre;
    };
    void (*interval_sums)(const float* est, const float* rad, int64_t n, float most, Link link, float beta, float shift,
                          Sums* sums);

    // Values of est - rad above `floor`.
    int64_t (*lower_above)(const float* est, const float* rad, int64_t n, float floor, float* out);

    // Classes with est + rad >= tau: their ids (first + position), estimates and upper ends.
    int64_t (*candidates)(const float* est, const float* rad, int64_t n, float tau, int32_t first, int32_t* ids,
                         float* kept, float* upper);

    // The high words of the Philox4x32-10 noise of classes first .. first + n - 1 (first a multiple of 4).
    void (*noise)(uint64_t seed, uint64_t row, uint32_t draw, int64_t first, int64_t n, uint32_t* out);

    // Which of the words [n] reach `least`, rising; returns how many. n is a multiple of 16.
    int64_t (*high_words)(const uint32_t* words, int64_t n, uint32_t least, int32_t* out);

    // No less than link(z) * beta + gumbel, from the interval of z and the noise's high word, -inf for a class at -inf; the
    // largest is returned.
    float (*gumbel_keys)(const float* est, const float* rad, const uint32_t* words, int64_t n, Link link, float beta, float* upper);

    // ‖row‖ rounded up; NaN where an entry is not finite.
    float (*row_norm)(const void* row, Kind kind, int64_t dim);

    // A row in blocks of codes as float32 numbers; the kernels above take rows of plain numbers: see kernels/any_rows.h.
    void (*row_floats)(const void* row, Kind kind, int64_t dim, float* out);

    // log sum exp(link(z)) of a row; link(z); and the row's gradient in its place: see kernels/common/loss.inl. Any n; gss too:
    // k (z - c) + c - (k - 1) softplus(z - c), a = c, b = k.
    double (*link_lse)(const float* z, int64_t n, const Link& link);
    float (*link_at)(float z, const Link& link);
    void (*link_gradient)(float* z, int64_t n, const Link& link, double lse, int64_t target, float scale,
                          double* const* sums);
};

}  // namespace headlong
