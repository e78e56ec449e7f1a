// Sixteen numbers as the compiler's vectors and plain loops have them: for the levels without instructions of their own.
typedef float F16 __attribute__((vector_size(64)));
typedef int8_t Codes16 __attribute__((vector_size(16)));
typedef uint8_t Lengths16 __attribute__((vector_size(16)));

inline F16 floats(Codes16 codes) { return __builtin_convertvector(codes, F16); }
inline F16 floats(Lengths16 lengths) { return __builtin_convertvector(lengths, F16); }

inline uint32_t reaching(const float* upper, float tau) {
    uint32_t bits = 0;
    for (int c = 0; c < kNeighbours; ++c) bits |= static_cast<uint32_t>(upper[c] >= tau) << c;
    return bits;
}
