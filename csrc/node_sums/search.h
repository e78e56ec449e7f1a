// Sums of exponentials over the nodes of a tree of classes, between bounds: see engines/reference/node_sums.py, which says it in NumPy.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "blocks/search.h"
#include "executor/question.h"

namespace headlong {

// What is known of a node, `nodes` of NodeSums.at: numbers in float64, in this order.
//     mean of rows and bias [dim + 1]; their covariances, the lower triangle, off its diagonal twice; level [dim]; low, high of
//     rows [dim] each; low and high of bias + <row, level>
struct NodeLayout {
    static constexpr int64_t kMostDim = 8;

    explicit NodeLayout(int64_t dim = 0)
        : spread(dim + 1), level(spread + (dim + 1) * (dim + 2) / 2), low(level + dim), high(low + dim), rest(high + dim), fields(rest + 2) {}
    int64_t spread, level, low, high, rest, fields;
};

struct NodeSums {
    int64_t vocab = 0, dim = 0;
    int levels = 0;                       // below the root
    NodeLayout at;
    std::shared_ptr<const double> nodes;  // [2^(levels + 1) - 1][fields], level after level
    std::vector<float> rows;              // of each leaf [dim + 1][its classes]: rows and biases, column after column
    std::vector<double> widest;           // [dim + 1]: no entry is larger
    double most = 0;                      // bytes beyond which a search is given up
    mutable Trial trial;
};

// The numbers that a search goes by: a link scale * z + shift, and how far what else is rounded carries the normaliser.
struct SumsQuestion {
    double eps, scale, shift, fixed;
};

// A normaliser within eps, proved; false: it was given up, and the answer has what that took.
bool sum_nodes(const NodeSums& s, const Kernels& kernels, const double* hidden, const SumsQuestion& question, Answer* answer);

}  // namespace headlong
