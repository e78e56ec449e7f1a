// A normaliser by blocks, from as many rows as queries taught.
#pragma once

#include <vector>

#include "blocks/search.h"
#include "executor/executor.h"

namespace headlong {

constexpr int64_t kDrawnFor = 10;   // ids whose search says which blocks matter: no more may be asked for
constexpr int64_t kDrawnAlone = 2;  // queries at once; more of them look at all classes together

// Whether queries taught what is asked here.
bool learned_by_blocks(const Blocks& b, const Question& question, int64_t count);

// Answers for `count` <= kDrawnAlone queries. One for which the search or the draws would be expensive is asked of the executor, and
// there nothing that was learned is used.
std::vector<Answer> ask_by_blocks(const Executor& e, const Blocks& b, const double* hidden, int64_t count, const Question& question);

// Estimates of each of `count` normalisers, [count][spends][tries], if the draws cost as much as each of `spends` says; NaN where
// blocks do not answer.
std::vector<double> try_block_draws(const Executor& e, const Blocks& b, const double* hidden, int64_t count, const Question& question,
                                    const std::vector<double>& spends, int tries);

}  // namespace headlong
