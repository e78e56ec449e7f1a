// The matrix that everything is read from: one row for each class, a bias and the link, borrowed and never changed.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/kernels.h"

namespace headlong {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Matrix {
    const void* weight = nullptr;
    Kind kind = Kind::f32;
    int64_t vocab = 0, dim = 0, padded = 0;  // padded: vocab rounded up to whole blocks of codes
    const float* bias = nullptr;             // [vocab] or null
    double most_norm = 0;                    // of any row
    Link link{LinkForm::affine, 1.f, 0.f};
    double link_a = 1, link_b = 0;  // of a table: the steepest slope, and twice how far it is off what it stands for
    double link_start = 0, link_step = 1;
    const double* link_values = nullptr;  // [cells + 1] of a table, at its knots
    double link_left = 1, link_right = 1;

    // The logit of a row from its dot product. Where a mapped weight was damaged into NaN or infinity, the class is no
    // rival: comparisons with NaN would have no order, and sorting by them no bounds.
    double exact(double dot, int64_t id) const {
        const double z = bias == nullptr ? dot : dot + bias[id];
        return std::isfinite(z) ? z : -kInf;
    }
    double linked(double z) const {
        if (link.form == LinkForm::table) return tabled(z);
        return headlong::linked(link.form, link_a, link_b, z);
    }
    // What it takes to read a row, in bytes: as many as its numbers have in float32 where they have to be made from codes.
    double row_cost() const { return in_blocks_of_codes(kind) ? 4 * static_cast<double>(dim) : row_bytes(); }
    double row_bytes() const { return static_cast<double>(headlong::row_bytes(kind, dim)); }

  private:
    double tabled(double z) const {
        const double cells = link.cells, u = (z - link_start) / link_step;
        if (!(u >= 0)) return link_values[0] + (z - link_start) * link_left;
        if (u >= cells) return link_values[static_cast<int64_t>(cells)] + (z - link_start - cells * link_step) * link_right;
        const int64_t i = static_cast<int64_t>(u);
        return link_values[i] +
               (z - (link_start + link_step * static_cast<double>(i))) * ((link_values[i + 1] - link_values[i]) / link_step);
    }
};

}  // namespace headlong
