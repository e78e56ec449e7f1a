// The looks of blocks/looks.h for one instruction set; see blocks/looks.inl.
#include <immintrin.h>
#include <cstdint>
#include <cstring>

#include "blocks/looks.h"

namespace headlong {
namespace {

typedef float F16 __attribute__((vector_size(64)));
typedef int8_t Codes16 __attribute__((vector_size(16)));
typedef uint8_t Lengths16 __attribute__((vector_size(16)));

inline F16 floats(Codes16 codes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(reinterpret_cast<__m128i>(codes))); }
inline F16 floats(Lengths16 lengths) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(reinterpret_cast<__m128i>(lengths))); }

inline uint32_t reaching(const float* upper, float tau) {
    return _mm512_cmp_ps_mask(_mm512_loadu_ps(upper), _mm512_set1_ps(tau), _CMP_GE_OQ);
}

#include "blocks/looks.inl"

}  // namespace

const Looks* avx512_looks() {
    static const Looks table = {"avx512vnni", sixteen, ray, ray_nodes, closer, spread};
    return &table;
}

}  // namespace headlong
