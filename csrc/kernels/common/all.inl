// What every instruction set takes, written once on the compiler's vector types and compiled for each. Included inside the anonymous
// namespace of a translation unit that defines LANES (floats of one vector).
#include "kernels/common/vectors.inl"
#include "kernels/common/candidates.inl"
#include "kernels/common/intervals.inl"
#include "kernels/common/philox.inl"
#include "kernels/common/gumbel.inl"
#include "kernels/common/float64.inl"
#include "kernels/common/stored_rows.inl"
#include "kernels/common/block_rows.inl"
#include "kernels/common/loss.inl"
