// Sixteen numbers as the compiler's vectors and plain loops have them: for the levels without instructions of their own.
#include "blocks/wide.inl"

typedef Two<Two<F4>> F16;
typedef Two<Two<I4>> I16;
typedef int8_t Codes16 __attribute__((vector_size(16)));
typedef uint8_t Lengths16 __attribute__((vector_size(16)));

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
