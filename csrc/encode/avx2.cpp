// The encoder of encode/encode.h for one instruction set; see encode/kernels.inl.
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "encode/encode.h"

namespace headlong {
namespace {

#define LANES 8
#define ROWS 4
typedef float F __attribute__((vector_size(LANES * 4)));

#include "kernels/common/load_row.inl"

template <Kind K>
inline F load(const char* from) {
    if (K == Kind::f32) return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return K == Kind::f16 ? _mm256_cvtph_ps(half) : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

#include "encode/kernels.inl"

}  // namespace

const EncodeKernels* avx2_encoder() {
    static const EncodeKernels table = {"avx2", LANES, narrow, turn, within, square, plane};
    return &table;
}

}  // namespace headlong
