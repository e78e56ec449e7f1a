// Structured layers: experts in experts.h; here the descent: a layer that decides step by step (trees, bands), read best branch first.
// The twin of engines/reference/descent.py.
#pragma once

#include <cstdint>
#include <vector>

#include "executor/question.h"

namespace headlong {

// One matrix: weight [rows, width] and bias [rows] or null, over projection [width, dim] @ hidden or hidden itself.
struct StepPart {
    const void* weight = nullptr;
    Kind kind = Kind::f32;
    int64_t rows = 0, width = 0;
    const float* bias = nullptr;
    const void* projection = nullptr;
    Kind projection_kind = Kind::f32;
};

struct Steps {
    const Kernels* kernels = nullptr;
    int64_t dim = 0, nodes = 0, branches = 0, vocab = 0;
    std::vector<StepPart> parts;
    const int64_t *part = nullptr, *first = nullptr, *starts = nullptr, *children = nullptr;  // as in Python
    const int64_t *owner = nullptr, *above = nullptr, *leaf = nullptr;  // [branches], [nodes], [vocab]
    bool two_way = false;

    int64_t fan(int64_t node) const { return starts[node + 1] - starts[node]; }
    int64_t rows(int64_t node) const { return two_way ? 1 : fan(node); }
};

struct Read {
    std::vector<Scored> best;  // z is a log-probability
    int64_t rows = 0;
    double bytes = 0;
};

// The k likeliest classes, best first, equal ones by id; fewer where there are fewer.
std::vector<Scored> descend(const Steps& steps, const double* hidden, int64_t k, int threads, Read* read);

// out[j] = log p(ids[j]); every node on the way is opened once.
void follow(const Steps& steps, const double* hidden, const int64_t* ids, int64_t m, int threads, double* out, Read* read);

}  // namespace headlong
