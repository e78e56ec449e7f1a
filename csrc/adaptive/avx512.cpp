// The column sums of adaptive/search.h for one instruction set; see adaptive/columns.inl.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "adaptive/search.h"

namespace headlong {
namespace {

#define LANES 16
typedef float F __attribute__((vector_size(LANES * 4)));

template <Kind K>
inline F load(const char* from) {
    if (K == Kind::f32) return _mm512_loadu_ps(from);
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return K == Kind::f16 ? _mm512_cvtph_ps(half) : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

inline unsigned bits_above(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }

#include "adaptive/columns.inl"

}  // namespace

const ColumnKernels* avx512_columns() {
    static const ColumnKernels table = {"avx512vnni", moments, block, widths, largest, above};
    return &table;
}

}  // namespace headlong
