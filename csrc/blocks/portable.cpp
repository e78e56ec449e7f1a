// The looks of blocks/looks.h (see blocks/looks.inl) for levels without instructions of their own: sixteen numbers as the compiler's vectors
// and plain loops have them.
#include <cstdint>
#include <cstring>

#include "blocks/looks.h"
#include "kernels/levels.h"

namespace headlong {
namespace {

#include "blocks/wide.inl"

typedef Two<Two<F4>> F16;
typedef Two<Two<I4>> I16;

template <typename V>
inline F4 four(V codes, int from) { return F4{float(codes[from]), float(codes[from + 1]), float(codes[from + 2]), float(codes[from + 3])}; }
template <typename V>
inline F16 sixteen_of(V codes) { return {{four(codes, 0), four(codes, 4)}, {four(codes, 8), four(codes, 12)}}; }
inline F16 floats(Codes16 codes) { return sixteen_of(codes); }
inline F16 floats(Lengths16 lengths) { return sixteen_of(lengths); }

inline uint32_t reaching(const float* upper, float tau) {
    uint32_t bits = 0;
    for (int c = 0; c < kNeighbours; ++c) bits |= static_cast<uint32_t>(upper[c] >= tau) << c;
    return bits;
}

#include "blocks/one_by_one.inl"
#include "blocks/looks.inl"

}  // namespace

const Looks* portable_looks() { return &kLooks; }

}  // namespace headlong
