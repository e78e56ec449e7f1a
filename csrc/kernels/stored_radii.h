// The rows' halves of the radii: how slacks are stored, and what is made of them.
#pragma once

#include <cstdint>

namespace headlong {

constexpr int kMaxTerms = 8;  // summands of a radius

// The row's half of a summand of a radius, one number for each class. How it is stored is known here and in load(Slack)
// (kernels/common/vectors.inl) alone.
struct Slack {
    const float* values = nullptr;
    float operator[](int64_t i) const { return values[i]; }
};

// radius[i] = constant + sum_t slack[t][i] * term[t]
struct Radius {
    Slack slack[kMaxTerms];
    float term[kMaxTerms];
    float constant;
    int terms;

    float at(int64_t i) const {  // of one class
        float sum = constant;
        for (int t = 0; t < terms; ++t) sum += slack[t][i] * term[t];
        return sum;
    }
};

}  // namespace headlong
