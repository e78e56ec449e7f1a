// LANES neighbouring entries of a row as it is stored, as floats: how each instruction set widens them. Included inside an anonymous
// namespace that defined LANES, and PLAIN (plain loops, the reference) or NEON where those are meant; else 16 lanes are
// AVX-512's, 8 AVX2's, and 4 the compiler's own vectors.

typedef float F __attribute__((vector_size(LANES * 4)));

#include "kernels/common/stored_entry.inl"

template <Kind K>
inline F load(const char* from) {
#if defined(PLAIN)
    F out;
    for (int i = 0; i < LANES; ++i) out[i] = one_float(from, K, i);
    return out;
#elif LANES == 16
    if (K == Kind::f32) return _mm512_loadu_ps(from);
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return K == Kind::f16 ? _mm512_cvtph_ps(half) : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
#elif LANES == 8
    if (K == Kind::f32) return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return K == Kind::f16 ? _mm256_cvtph_ps(half) : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
#elif defined(NEON)
    if (K == Kind::f32) return (F)vld1q_f32(reinterpret_cast<const float*>(from));
    const uint16x4_t half = vld1_u16(reinterpret_cast<const uint16_t*>(from));
    return K == Kind::f16 ? (F)vcvt_f32_f16((float16x4_t)half) : (F)vshll_n_u16(half, 16);
#else
    return four_entries<K>(from);
#endif
}
