// The encoder of encode/encode.h for one instruction set; see encode/kernels.inl.
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "encode/encode.h"

namespace headlong {
namespace {

#define LANES 16
#define ROWS 8
typedef float F __attribute__((vector_size(LANES * 4)));

#include "kernels/common/load_row.inl"

template <Kind K>
inline F load(const char* from) {
    if (K == Kind::f32) return _mm512_loadu_ps(from);
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return K == Kind::f16 ? _mm512_cvtph_ps(half) : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

#include "encode/kernels.inl"

}  // namespace

const EncodeKernels* avx512_encoder() {
    static const EncodeKernels table = {"avx512vnni", LANES, narrow, turn, within, square, plane};
    return &table;
}

}  // namespace headlong
