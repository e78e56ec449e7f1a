// What the AArch64 levels share: all but how bytes are multiplied. Included inside the anonymous namespace of kernels/neon.cpp,
// kernels/dotprod.cpp and kernels/i8mm.cpp, which are compiled without contraction: what follows a scan is the reference's to
// the bit. Products of rows are fused.

#define LANES 4
#define ANY(mask) (vmaxvq_u32((uint32x4_t)(mask)) != 0)
#define FUSED(a, b, c) (D) vfmaq_f64((float64x2_t)(c), (float64x2_t)(a), (float64x2_t)(b))
#define GATHER_PAIRS(table, at, out)                                                                                     \
    do {                                                                                                                 \
        const float32x4_t near = vcombine_f32(vld1_f32((table) + 2 * (at)[0]), vld1_f32((table) + 2 * (at)[1]));         \
        const float32x4_t far = vcombine_f32(vld1_f32((table) + 2 * (at)[2]), vld1_f32((table) + 2 * (at)[3]));          \
        (out).first = (F)vuzp1q_f32(near, far);                                                                          \
        (out).second = (F)vuzp2q_f32(near, far);                                                                         \
    } while (false)
#define WIDEN_HALVES(p) widen_halves(p)

typedef double Halves __attribute__((vector_size(16)));
inline Halves widen_halves(const uint16_t* p) {
    uint32_t both;
    std::memcpy(&both, p, sizeof both);
    const float16x4_t half = (float16x4_t)vdup_n_u32(both);
    return (Halves)vcvt_f64_f32(vget_low_f32(vcvt_f32_f16(half)));
}

#include "kernels/common/all.inl"

template <Kind K>
inline F load4(const void* row, int64_t j) {
    if (K == Kind::f32) return (F)vld1q_f32(static_cast<const float*>(row) + j);
    const uint16x4_t half = vld1_u16(static_cast<const uint16_t*>(row) + j);
    if (K == Kind::f16) return (F)vcvt_f32_f16((float16x4_t)half);
    return (F)vshll_n_u16(half, 16);
}
inline D low_half(F v) { return (D)vcvt_f64_f32(vget_low_f32((float32x4_t)v)); }
inline D high_half(F v) { return (D)vcvt_high_f64_f32((float32x4_t)v); }
inline F fused(F a, F b, F c) { return (F)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }

#include "kernels/common/row_products_4_wide.inl"

// M vectors, after which `from` goes on by `next`. Four, and eight as two times four, are loaded by hand: compilers give the load of four
// registers an addition of its own, and move its registers about.
template <int M>
inline void load_vectors(const uint8_t*& from, int64_t next, uint8x16_t (&to)[M]) {
    if constexpr (M == 8) {
        register uint8x16_t a asm("v16"), b asm("v17"), c asm("v18"), d asm("v19");
        register uint8x16_t e asm("v20"), f asm("v21"), g asm("v22"), h asm("v23");
        asm volatile(
            "ld1 {v16.16b, v17.16b, v18.16b, v19.16b}, [%8], #64\n\t"
            "ld1 {v20.16b, v21.16b, v22.16b, v23.16b}, [%8], %9"
            : "=w"(a), "=w"(b), "=w"(c), "=w"(d), "=w"(e), "=w"(f), "=w"(g), "=w"(h), "+r"(from)
            : "r"(next - 64)
            : "memory");
        to[0] = a, to[1] = b, to[2] = c, to[3] = d, to[4] = e, to[5] = f, to[6] = g, to[7] = h;
    } else if constexpr (M == 4) {
        register uint8x16_t a asm("v16"), b asm("v17"), c asm("v18"), d asm("v19");
        asm volatile("ld1 {v16.16b, v17.16b, v18.16b, v19.16b}, [%4], %5" : "=w"(a), "=w"(b), "=w"(c), "=w"(d), "+r"(from) : "r"(next) : "memory");
        to[0] = a, to[1] = b, to[2] = c, to[3] = d;
    } else {
#pragma GCC unroll 4
        for (int v = 0; v < M; ++v) to[v] = vld1q_u8(from + 16 * v);
        from += next;
    }
}

// How a query's bytes and the codes are loaded, whatever multiplies them.
struct ByteVectors {
    using Codes = uint8x16_t;
    using X = int8x16_t;
    static X load(const int8_t* planes) { return vld1q_s8(planes); }
    static X half(const int8_t* planes) { return vcombine_s8(vld1_s8(planes), vdup_n_s8(0)); }
    template <int M>
    static void vectors(const uint8_t*& from, int64_t next, Codes (&to)[M]) { load_vectors<M>(from, next, to); }
};

// Where bytes of one kind alone are multiplied: the query is raised by 128.
struct RaisedBytes : ByteVectors {
    static constexpr bool centred = true;
    static X raise(X x) { return veorq_s8(x, vdupq_n_s8(-128)); }
};
