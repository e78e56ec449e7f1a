// AdaptiveSoftmax's search for the k best classes of a query and its normaliser.
#pragma once

#include <vector>

#include "adaptive/columns.h"
#include "executor/question.h"

namespace headlong {

struct AdaptiveRules {
    double eps, delta, warm, arm, sum;  // eps: of the normaliser, relative
    bool published;
    double width;  // the first variance that is tried for the best arms
    int64_t k;
};

struct FoundByColumns {
    std::vector<Scored> best;  // z holds link(logit)
    double lse = 0;
    int64_t pulls = 0, full = 0;
};

// One query; mask [vocab] or null; estimates [vocab] of all classes, or null.
FoundByColumns search_columns(const Columns& layer, const AdaptiveRules& rules, const uint8_t* mask, const double* hidden, uint64_t seed, uint64_t key, int threads,
                              float* estimates);

}  // namespace headlong
