// Runs a plan over a matrix: one native call answers a batch of queries.
//
// The arrays are borrowed (bind/executor.cpp keeps their owners alive) and never changed; an executor may serve many threads. Data is
// plain: the matrix, the plan, a group of queries that look at it together (executor/look.h), what is believed of each
// class of one of them (executor/beliefs.h). What is done with it are functions, a file for each: executor/verbs.h.
#pragma once

#include <atomic>
#include <vector>

#include "executor/matrix.h"
#include "executor/plan.h"
#include "executor/question.h"

namespace headlong {

struct Executor : Matrix, Plan {
    const Kernels* kernels = nullptr;
    mutable std::atomic<int> keeping{0};  // for how many more groups of large batches estimates are kept
};

// Answers for `count` queries [count][dim]; `dense_only` skips the preview.
std::vector<Answer> ask(const Executor& e, const double* hidden, int64_t count, const Question& question, bool dense_only);
// Exact logits of m classes for each of them.
void logits(const Executor& e, const double* hidden, int64_t count, const int64_t* ids, int64_t m, int threads, double* out);
// rule.n draws for each of them.
std::vector<Answer> sample(const Executor& e, const double* hidden, int64_t count, const SampleRule& rule, const Question& question,
                           bool dense_only, std::vector<Draw>* draws);

// The Gumbel noise of a class: Philox4x32-10 words, see sampling/philox.h.
double gumbel(uint64_t seed, uint64_t row, uint32_t draw, int64_t id);

}  // namespace headlong
