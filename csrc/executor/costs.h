// What reading costs, in nanoseconds of one thread: about what one machine with AVX-512 takes, and used
// for ratios alone, by which a query of a batch is looked at or read densely. No id and no logit goes by them.
#pragma once

#include "executor/matrix.h"

namespace headlong {

// A class of a dense pass, for each of `n` queries that share it: the exponential, the product, its part of the bytes.
inline double dense_cost(const Matrix& m, double n) { return 1.5 + 0.018 * static_cast<double>(m.dim) + 0.1 * m.row_bytes() / n; }

// A class that is looked at for one lane of many by so many bytes of codes.
inline double lane_cost(double bytes) { return 0.7 + 0.006 * bytes; }

// A class that is looked at more closely for one query, somewhere among the others.
inline double hit_cost(double bytes) { return 25 + 0.1 * bytes; }

// A class of a look at all of them for one query, beside its codes: its interval, and what that adds to the sums.
constexpr double kInterval = 2.5;

}  // namespace headlong
