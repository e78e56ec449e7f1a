// What reads a matrix's rows: some of them, a full scan, or SVD-softmax's preview first. Rotated codes are read in codes/, blocks in blocks/;
// both score their candidates here.
//
// The arrays are borrowed (bind/executor.cpp keeps their owners alive) and never changed; an executor may serve many threads.
#pragma once

#include <vector>

#include "executor/matrix.h"
#include "executor/question.h"

namespace headlong {

constexpr int64_t kChunk = 512;      // classes between two looks at a threshold
constexpr double kMostScored = 0.25;  // of the classes that are scored one by one: beyond, a full scan in float64 is better

// SVD-softmax as published: x = hidden @ rotation, the first columns of every row, and how many rows are then scored instead of a proof.
struct Preview {
    const void* rotation = nullptr;  // [dim][width]
    Kind rotation_kind = Kind::f32;
    const float* columns = nullptr;  // [vocab][width]
    const float* base = nullptr;     // [padded]
    int64_t width = 0, budget = 0;   // 0: there is none
};

struct Executor : Matrix {
    const char* isa = nullptr;
    const Kernels* kernels = nullptr;
    // Of every class [padded]: the length of its row, its bias (null where all are 0) and what float32 may lose of that.
    const float *norms = nullptr, *base = nullptr, *base_error = nullptr;
    Preview preview;
};

// Of a class of an answer, by its logit; NaN where the normaliser is.
inline double log_prob_of(const Executor& e, const Answer& answer, double z) {
    if (std::isnan(answer.lse)) return answer.lse;
    return std::isfinite(z) ? e.linked(z) - answer.lse : -kInf;
}

// Answers for `count` queries [count][dim].
std::vector<Answer> ask(const Executor& e, const double* hidden, int64_t count, const Question& question);
// Exact logits of m classes for each of them.
void logits(const Executor& e, const double* hidden, int64_t count, const int64_t* ids, int64_t m, int threads, double* out);
// Draws for each of them by a rule of its own, as many by every rule, whose filters keep all.
std::vector<Answer> sample(const Executor& e, const double* hidden, int64_t count, const std::vector<SampleRule>& rules, const Question& question,
                           std::vector<Draw>* draws);

// The Gumbel noise of a class: Philox4x32-10 words, see sampling/philox.h.
double gumbel(uint64_t seed, uint64_t row, uint32_t draw, int64_t id);

}  // namespace headlong
