// An order of rows in which the nodes of a binary tree are runs of neighbours.
#pragma once

#include <cstdint>
#include <vector>

namespace headlong {

// Where node `node` of the `count` nodes of one level begins.
inline int64_t node_start(int64_t vocab, int level, int64_t node) { return static_cast<int64_t>(static_cast<unsigned long long>(node) * vocab >> level); }

// The ids of rows [vocab][dim], sorted into 2^levels leaves: each node is divided at the median of its widest coordinate, equal
// entries by id. Within a leaf ids rise. ``median_order`` of native/rows.py says it in NumPy.
std::vector<int32_t> median_order(const float* rows, int64_t vocab, int64_t dim, int levels, int threads);

}  // namespace headlong
