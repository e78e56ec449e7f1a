// What is asked of an executor, and what it answers.
#pragma once

#include <cstdint>
#include <vector>

#include "executor/matrix.h"

namespace headlong {

struct Scored {
    int64_t id;
    double z;
};

// Larger logits first, smaller ids first among equals.
inline bool better(const Scored& a, const Scored& b) { return a.z > b.z || (a.z == b.z && a.id < b.id); }

struct SampleRule;

// A functional F = sum p w of a distribution, w = -log p of a class, from S = sum e^y and M = sum y e^y with y an exponent less any shift.
// Its terms are bounded by w times what p may be off and p times what w may be: codes/entropy.cpp.
struct Functional {
    double (*value)(double sum, double moment);
    double (*lost)(double value);  // how far off it is for an error of one nat in each logit
};
extern const Functional kEntropy;

// A question, the same for all queries of a call.
struct Question {
    int64_t k = 0;
    double eps = kInf, beta = 1;
    double delta = 0;   // > 0: the normaliser may be estimated from sampled rows, wrong this often
    uint64_t seed = 0;  // of those rows
    const uint8_t* mask = nullptr;  // [1 or batch][vocab]: 1 where a class may be answered
    bool mask_per_row = false;
    const SampleRule* rules = nullptr;  // [batch]: the largest keys of all classes are asked for, too; null: they are not
    const Functional* functional = nullptr;  // is asked for, within eps, with the normaliser; its value and `error` are in the answer
    int threads = 1;
};

struct SampleRule {
    int n = 1;
    double temperature = 1;
    int64_t top_k = 0;
    double top_p = 1, min_p = 0;
    uint64_t seed = 0, row0 = 0;
    int64_t class0 = 0;  // the id of the first class, where the layer is a shard of a larger one: noise goes by that
    bool last = false;   // the temperature comes last: filters go by the distribution at temperature 1, draws from what they keep do not

    bool keeps_all() const { return top_k == 0 && top_p >= 1 && !(min_p > 0); }
    bool goes_by_mass() const { return top_k == 0 && top_p < 1 && !(min_p > 0); }
    double beta() const { return last ? 1 : 1 / temperature; }  // of the filters
    int64_t name(int64_t id) const { return id + class0; }
};

struct Interval {
    double value, error;
};

struct Draw {
    int64_t id = -1;
    double z = -kInf, score = -kInf;
    bool proved = false;
};

struct Answer {
    std::vector<Scored> best;
    std::vector<Draw> draws;  // of all classes, where rules asked for them; none where rows were scanned in full
    double lse = 0, error = kInf;
    double value = 0;  // of a functional, where one was asked for: the error is its own
    bool inside = false;  // where the draws go by mass: all of them are in the nucleus
    size_t least = 0, most = SIZE_MAX;  // and of the best, how many are in it
    double kept = 0;     // of draws: the log of the mass that filters keep, within `error`
    bool proved = false, dense = false;
    bool few = false;  // a mask left few classes, whose rows alone were read
    int64_t rows = 0;
    double bytes = 0;
};

}  // namespace headlong
