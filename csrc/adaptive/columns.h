// A layer by its coordinates, 64 classes side by side, and the one kernel that reads it: plain loops that compilers make vectors of, nothing
// here is particular to an instruction set.
#pragma once

#include <cmath>
#include <cstdint>

#include "executor/matrix.h"
#include "kernels/kernels.h"

namespace headlong {

constexpr int64_t kGroup = 64;    // classes that are read together: the bits of a mask
constexpr int64_t kAbreast = 16;  // classes of one sum

// A layer by its coordinates; all is borrowed, and may serve many threads.
struct Columns {
    const void* weight = nullptr;
    Kind kind = Kind::f32;
    int64_t vocab = 0, dim = 0;
    const float* bias = nullptr;
    const float* columns = nullptr;          // [groups][dim][64]
    const double* column_weight = nullptr;   // [dim]
    double a = 1, b = 0;                     // the link
    const Kernels* kernels = nullptr;

    int64_t groups() const { return in_blocks(vocab) / kGroup; }
    double base(int64_t i) const { return a * (bias == nullptr ? 0.0 : bias[i]) + b; }
    double logit(const double* hidden, int64_t id) const {
        double z;
        kernels->dot_rows(weight, kind, dim, &id, 1, hidden, &z);
        if (bias != nullptr) z += bias[id];
        return std::isfinite(z) ? a * z + b : -kInf;  // a damaged row is no rival
    }
};

// Of sixteen classes whose columns lie in groups from `from` on: est = sum_j c_j w_j, var = sum_j d_j w_j^2 over the first m coordinates `ids`.
inline void prefix_sums(const float* from, const int32_t* ids, const float* c, const float* d, int64_t m, float* est, float* var) {
    float sums[kAbreast] = {}, squares[kAbreast] = {};
    for (int64_t j = 0; j < m; ++j) {
        const float *w = from + ids[j] * kGroup, one = c[j], two = d[j];
        for (int64_t i = 0; i < kAbreast; ++i) {
            sums[i] += one * w[i];
            squares[i] += two * (w[i] * w[i]);
        }
    }
    for (int64_t i = 0; i < kAbreast; ++i) est[i] = sums[i], var[i] = squares[i];
}

}  // namespace headlong
