// The column sums of adaptive/search.h for one instruction set; see adaptive/columns.inl.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "adaptive/search.h"

namespace headlong {
namespace {

#define LANES 8
typedef float F __attribute__((vector_size(LANES * 4)));

template <Kind K>
inline F load(const char* from) {
    if (K == Kind::f32) return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return K == Kind::f16 ? _mm256_cvtph_ps(half) : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

inline unsigned bits_above(F a, F b) { return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ))); }

#include "adaptive/columns.inl"

}  // namespace

const ColumnKernels* avx2_columns() {
    static const ColumnKernels table = {"avx2", moments, block, widths, largest, above};
    return &table;
}

}  // namespace headlong
