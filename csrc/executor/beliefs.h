// What is believed of each class of one query while it is resolved.
#pragma once

#include <cstdint>
#include <vector>

#include "executor/question.h"
#include "runtime/scratch.h"

namespace headlong {

// A class that may be among the best: what it is estimated at, and what it may be at most.
struct Hit {
    int32_t id;
    float est, upper;
};
inline bool by_estimate(const Hit& a, const Hit& b) { return a.est > b.est || (a.est == b.est && a.id < b.id); }
inline bool by_upper(const Hit& a, const Hit& b) { return a.upper > b.upper || (a.upper == b.upper && a.id < b.id); }

// What is believed of all classes for one query while draws are made, and the classes that were scored, which the estimates no longer
// hold: -inf and 0 stand there.
struct Estimates {
    const double* hidden = nullptr;
    Scratch<float> est, rad;   // [padded]
    std::vector<Scored> scored;
    double shift = -kInf;      // of the largest exponent
};

// The hidden vector in float32, where that is close enough for rows of a normaliser.
struct Near {
    std::vector<float> floats;
};

// A class with its key link(z) / T + gumbel.
struct Keyed {
    int64_t id = -1;
    double z = -kInf, key = -kInf;
};

// The keys of one draw: upper ends of all classes that are not scored.
struct Keys {
    uint32_t draw = 0;
    Scratch<float> upper;
    std::vector<float> largest;  // of each chunk; they may have fallen since
    Scratch<uint32_t> words;     // the first 32 bits of the noise of all classes, where many were scored before; or empty
};

}  // namespace headlong
