// What a look and a dense pass cost queries of a batch, in nanoseconds of one thread, about what one machine with AVX-512 takes,
// used for ratios alone. No id and no logit goes by them. answer_batch.cpp, look.cpp and normaliser/ decide
// with them. How many candidates are too many is decided in executor/threshold.cpp, what is worth scoring in executor/look.cpp.
#pragma once

#include <algorithm>

#include "executor/executor.h"

namespace headlong {

constexpr double kProduct = 0.018;  // of a row's number, in a batch
constexpr double kExponential = 2.1, kInterval = 3.2;  // of a class for one query, with all that both add to sums

// A byte of so many, which small layers leave in a cache.
inline double byte_cost(double all) { return all <= 8 << 20 ? 0.01 : 0.1; }

// A class of a dense pass, for each of `n` queries that share it: the exponential, the product, its part of the bytes, which come
// while the products of many queries are made.
inline double dense_cost(const Matrix& m, double n) {
    const double bytes = byte_cost(m.row_cost() * static_cast<double>(m.vocab)) * m.row_cost() / n;
    const double work = kExponential + kProduct * static_cast<double>(m.dim);
    return n > kRowQueries ? std::max(work, bytes) : work + bytes;
}

// A row that is read for one query, somewhere among the others.
inline double hit_cost(double bytes) { return 25 + 0.1 * bytes; }

// A class of a look at all of them for one query of a batch: its interval, what that adds to the sums, the products of its codes as
// the level makes them on which the engine was compiled: another one that loads it decides alike, and gives the same proofs.
inline double look_cost(const Executor& e) {
    const bool coded = e.preview.codes != nullptr;
    const double products = static_cast<double>(coded ? 4 * e.preview.words : e.preview.width);
    return kInterval + kProduct * products * (coded ? e.code_product : 1);
}

// A look's share of what a dense pass takes to read.
inline double share_of_look(const Executor& e) {
    return e.preview.bytes / (e.dense.bytes + static_cast<double>(e.vocab) * (e.row_cost() - e.row_bytes()));
}

// The bytes of a class's codes, for each of `n` queries of a batch that look at them together.
inline double codes_cost(const Executor& e, double n) {
    return byte_cost(e.preview.bytes) * e.preview.bytes / static_cast<double>(e.padded) / n;
}

// Whether queries that share a dense pass take less of it than of a look, whatever they look for: where products of codes cost more
// than those of rows and their part of the bytes. More queries than dense_rows takes read rows as tiles.
inline bool looks_cost_more(const Executor& e, size_t together) {
    return together > kRowQueries && look_cost(e) - kInterval > dense_cost(e, static_cast<double>(together)) - kExponential;
}

// A class of one more pass over the intervals of a query, for its normaliser.
constexpr double kPass = 2;

// What an answer took beside its look at all classes: rows, passes.
inline double cost_beside_look(const Executor& e, const Answer& answer) {
    return static_cast<double>(answer.rows) * hit_cost(e.row_cost()) + kPass * answer.passes * static_cast<double>(e.vocab);
}

}  // namespace headlong
