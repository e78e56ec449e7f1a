// The order of scored classes: larger logits first, smaller ids first among equal ones, whatever order a kernel sums in.
//
// Two logits that are further apart than float64 sums can be off are compared as they are. Others are summed again without rounding,
// and rounded once: rows that are permutations of each other have one logit, at every instruction level.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "executor/matrix.h"

namespace headlong {

class TrueOrder {
  public:
    // most_norm: of any row; 0 where nothing is known of the rows, and logits are compared as they are.
    TrueOrder(const Kernels& kernels, const void* weight, Kind kind, int64_t dim, const float* bias, double most_norm, const double* hidden);
    TrueOrder(const Kernels& kernels, const Matrix& rows, const double* hidden)
        : TrueOrder(kernels, rows.weight, rows.kind, rows.dim, rows.bias, rows.most_norm, hidden) {}

    template <typename S>
    bool operator()(const S& a, const S& b) const {
        if (!close(a.z, b.z)) return a.z > b.z || (a.z == b.z && a.id < b.id);
        if (a.z == b.z && same(a.id, b.id)) return a.id < b.id;
        const double x = exact(a.id), y = exact(b.id);
        return x > y || (x == y && a.id < b.id);
    }
    // Whether a class with this logit may come before one with that logit and a smaller id.
    bool may_beat(double z, double other) const { return z > other || close(z, other); }
    // How far from this logit others are compared with it by more than their values.
    double around(double z) const { return std::isfinite(z) ? most_off_ + 2.5 * bias_off_ * std::fabs(z) : 0; }
    // Gives falling logits that are close to another those that decide.
    template <typename Id, typename Z>
    void settle(int64_t n, const Id& id, const Z& z) const {
        bool before = false;
        for (int64_t i = 0; i < n; ++i) {
            const bool behind = i + 1 < n && close(z(i), z(i + 1));
            if (before || behind) z(i) = exact(id(i));
            before = behind;
        }
    }
    template <typename S>
    void settle(std::vector<S>& best) const {
        settle(static_cast<int64_t>(best.size()), [&](int64_t i) { return best[i].id; }, [&](int64_t i) -> double& { return best[i].z; });
    }

  private:
    bool close(double a, double b) const {
        const double gap = std::fabs(a - b);
        return gap < kInf && gap < most_off_ + bias_off_ * (std::fabs(a) + std::fabs(b));
    }
    const char* row_of(int64_t id) const { return static_cast<const char*>(weight_) + id * row_bytes(kind_, dim_); }
    bool same(int64_t a, int64_t b) const {
        return (bias_ == nullptr || bias_[a] == bias_[b]) && std::memcmp(row_of(a), row_of(b), static_cast<size_t>(row_bytes(kind_, dim_))) == 0;
    }
    double exact(int64_t id) const;

    const Kernels* kernels_;
    const void* weight_;
    Kind kind_;
    int64_t dim_;
    const float* bias_;
    const double* hidden_;
    double most_off_, bias_off_;  // twice what two sums can be off, and a part of their logits where a bias is added
    uint64_t key_;                // of this query, among what a thread remembers
};

}  // namespace headlong
