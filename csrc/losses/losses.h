// Softmax cross-entropy over link(z) and its gradient, for rows of logits; see headlong.native.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"

namespace headlong {

void link_losses(const Kernels& kernels, const float* logits, int64_t rows, int64_t vocab, const int64_t* target,
                 const Link& link, int threads, double* lse, double* at_target);

// Logits become gradients; returns the two rows of sums, see kernels/common/loss.inl.
std::vector<double> link_gradients(const Kernels& kernels, float* logits, int64_t rows, int64_t vocab,
                                   const int64_t* target, const double* lse, const float* scale, const Link& link,
                                   int threads);

}  // namespace headlong
