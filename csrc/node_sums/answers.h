// Normalisers by sums of nodes as an executor's answers; ids are found as they are without.
#pragma once

#include <functional>
#include <vector>

#include "executor/executor.h"

namespace headlong {

// How somebody else answers queries [count][dim].
using Others = std::function<std::vector<Answer>(const double* hidden, int64_t count, const Question& question)>;

// Whether normalisers are sought among nodes: of all classes, within a finite eps, while most searches find theirs. `densely`: a
// pass over all rows is made anyway, which is no use where only the normaliser is wanted.
bool sums_are_sought(const Executor& e, const Question& question, bool densely);

// `others` finds ids, and answers what searches gave up.
std::vector<Answer> ask_nodes(const Executor& e, const double* hidden, int64_t count, const Question& question, const Others& others);

}  // namespace headlong
