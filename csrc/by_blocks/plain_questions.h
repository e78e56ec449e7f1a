// Every direct call of an engine over one matrix, with blocks or without: who answers a question without a mask. The search over blocks
// where it can, else what knows all classes.
//
// The rules of engines/by_blocks.py, which asks step by step; an empty answer: Python is to find who answers.
#pragma once

#include <utility>
#include <vector>

#include "blocks/search.h"
#include "codes/rotated.h"
#include "executor/executor.h"

namespace headlong {

struct Reader {
    const Executor* executor = nullptr;
    const Blocks* blocks = nullptr;             // or none
    std::pair<double, double> affine{1, 0};     // the link of a layer with blocks
    int64_t blocks_batch = 0, blocks_most = 0;  // the batches and k that blocks take,
    int64_t blocks_together = 0;                // and k of larger batches
    bool every = true;                          // whether the executor knows all classes, so that it may answer what blocks do not
    double least = kInf;                        // the eps from which blocks find normalisers
    double edge = 0;                            // the largest `least` with which they find nuclei, too
    int64_t first = 1;                          // classes that a min-p filter asks for first
    bool samples = false;                       // whether they find plain samples
    const Codes* codes = nullptr;               // or none: what answers what blocks do not, except with probability codes_delta
    double codes_delta = 0;

    std::vector<Answer> topk(const double* rows, int64_t count, const Question& question) const;
    std::vector<Answer> lse(const double* rows, int64_t count, Question question) const;
    std::vector<Answer> sample(const double* rows, int64_t count, const SampleRule& rule, const Question& question,
                               std::vector<Draw>* draws) const;

  private:
    std::vector<Answer> by_all(const double* rows, int64_t count, const Question& question) const;
    bool searches(int64_t count, int64_t k) const;
    bool draws_plainly(int64_t count, const SampleRule& rule) const;
    bool draw_of_best(const double* rows, int64_t count, const SampleRule& rule, int threads, std::vector<Answer>* answers,
                      std::vector<Draw>* draws) const;
    bool draw_of_nucleus(const double* rows, int64_t count, const SampleRule& rule, int threads, std::vector<Answer>* answers,
                         std::vector<Draw>* draws) const;
};

}  // namespace headlong
