// The looks of blocks/looks.h for one instruction set; see blocks/looks.inl.
#include <immintrin.h>
#include <cstdint>
#include <cstring>

#include "blocks/looks.h"
#include "kernels/levels.h"

namespace headlong {
namespace {

#include "blocks/wide.inl"

typedef float F16 __attribute__((vector_size(64)));
typedef int32_t I16 __attribute__((vector_size(64)));

inline Two<F8> halves(const F16& a) { return {_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)}; }
inline F4 folded(const F16& a) { return folded(halves(a)); }
inline F4 least_four(const F16& a) { return least_four(halves(a)); }

inline F16 floats(Codes16 codes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(reinterpret_cast<__m128i>(codes))); }
inline F16 floats(Lengths16 lengths) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(reinterpret_cast<__m128i>(lengths))); }

inline uint32_t reaching(const float* upper, float tau) {
    return _mm512_cmp_ps_mask(_mm512_loadu_ps(upper), _mm512_set1_ps(tau), _CMP_GE_OQ);
}

inline void front(uint32_t open, const int32_t* from, int32_t* to) {
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(static_cast<__mmask16>(open), _mm512_loadu_si512(from)));
}
inline void front(uint32_t open, const float* from, float* to) {
    _mm512_storeu_ps(to, _mm512_maskz_compress_ps(static_cast<__mmask16>(open), _mm512_loadu_ps(from)));
}

template <typename T>
inline F16 short_product(const T* codes, const float* x, int64_t count) {
    typedef T V __attribute__((vector_size(16)));
    const __mmask16 some = static_cast<__mmask16>((1u << count) - 1);
    const __m128i read = _mm_maskz_loadu_epi8(some, codes);
    return floats(reinterpret_cast<V>(read)) * _mm512_maskz_loadu_ps(some, x);
}

#include "blocks/looks.inl"

}  // namespace

const Looks* avx512_looks() { return &kLooks; }

}  // namespace headlong
