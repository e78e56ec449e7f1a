// Plain samples by blocks: of the classes whose noise may be large enough alone, and of a search for large logits.
#pragma once

#include <vector>

#include "blocks/search.h"
#include "executor/executor.h"

namespace headlong {

// rule.n draws of each of `count` queries, filters aside, under an affine link. A query that the search gives up is asked of the executor.
std::vector<Answer> sample_by_blocks(const Executor& e, const Blocks& b, const double* hidden, int64_t count, const SampleRule& rule,
                                     const Question& question, std::vector<Draw>* draws);

}  // namespace headlong
