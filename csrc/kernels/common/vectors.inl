// Vectors of LANES floats, exp, log and links of them. Error bounds that codes/pass.h relies on: vexp is within 2^-21
// relatively (clamped at exp(+-88)), link and beta add 2^-21 of their magnitude.

typedef float F __attribute__((vector_size(LANES * 4)));
typedef int32_t I __attribute__((vector_size(LANES * 4)));
typedef uint32_t U __attribute__((vector_size(LANES * 4)));

constexpr float kInfinity = __builtin_inff();

inline F load(const float* p) {
    F v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline void store(float* p, F v) { std::memcpy(p, &v, sizeof v); }
inline F splat(float x) { return F{} + x; }
inline I bits(F v) {
    I out;
    std::memcpy(&out, &v, sizeof v);
    return out;
}
inline F floats(I v) {
    F out;
    std::memcpy(&out, &v, sizeof v);
    return out;
}
inline F pick(I mask, F yes, F no) { return mask ? yes : no; }
#ifdef LARGER  // compilers make comparisons and blends of the general form
inline F vmax(F a, F b) { return LARGER(a, b); }
inline F vmin(F a, F b) { return SMALLER(a, b); }
#else
inline F vmax(F a, F b) { return a > b ? a : b; }
inline F vmin(F a, F b) { return a < b ? a : b; }
#endif
inline bool any(I mask) {
#ifdef ANY  // compilers take lane by lane
    return ANY(mask);
#endif
    int32_t all = 0;
    for (int i = 0; i < LANES; ++i) all |= mask[i];
    return all != 0;
}

// exp for |x| <= 88, 0 below and exp(88) above; polynomial of the Cephes library's expf.
inline F vexp(F x) {
    F y = vmin(vmax(x, splat(-88.f)), splat(88.f));
    F shifted = y * 1.44269504f + 12582912.f;  // the integer sits in the low mantissa bits
    F n = shifted - 12582912.f;
    F r = (y - n * 0.693359375f) + n * 2.12194440e-4f;
    F p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.f;
    F out = floats(bits(p) + ((bits(shifted) - 0x4B400000) << 23));
    return pick(x < splat(-87.f), F{}, out);
}

// log for normal x > 0; polynomial of the Cephes library's logf.
inline F vlog(F x) {
    I raw = bits(x);
    I e = (raw >> 23) - 126;
    F m = floats((raw & 0x007FFFFF) | 0x3F000000);
    I small = m < splat(0.707106781f);
    m = pick(small, m + m, m) - 1.f;
    F n = __builtin_convertvector(e + small, F);  // a true lane is -1
    F z = m * m;
    F p = splat(7.0376836292e-2f);
    p = p * m - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    F y = p * m * z - n * 2.12194440e-4f - z * 0.5f;
    return m + y + n * 0.693359375f;
}

struct Pair {
    F first, second;
};

// table[2 at] and table[2 at + 1]: gathers cost by the element, and a pair is one.
inline Pair gather(const float* table, I at) {
    Pair out;
#ifdef GATHER_PAIRS
    GATHER_PAIRS(table, at, out);
#else
    for (int i = 0; i < LANES; ++i) {
        out.first[i] = table[2 * at[i]];
        out.second[i] = table[2 * at[i] + 1];
    }
#endif
    return out;
}

// Of a table, the cell of z, how far z is into it, and f and f' there. Clamped as floats, before they become integers: logits
// may be infinite.
struct Tabled {
    F value, slope, into;
    I cell;
};

inline Tabled tabled(const Link& link, F z) {
    F u = vmin(vmax((z - link.start) * link.inverse, splat(-1.f)), splat(link.cells)) + 1.f;
    I cell = __builtin_convertvector(u, I);
    F into = z - ((__builtin_convertvector(cell, F) - 1.f) * link.step + link.start);
    const Pair at = gather(link.table, cell);
    return {at.first + into * at.second, at.second, into, cell};
}

inline F vlink(const Link& link, F z) {
    if (link.form == LinkForm::affine) return z * link.a + link.b;
    if (link.form == LinkForm::table) return tabled(link, z).value;
    F u = z / link.a;
    F t = vexp(vmax(u, -u) * -2.f);
    F h = (1.f - t) / (1.f + t);
    // A class at -inf (padding, masked) is not there; a soft cap would bring it back at -cap.
    return pick(z == splat(-kInfinity), z, pick(u < F{}, -h, h) * link.a);
}

inline float sum_lanes(F v) {
#ifdef SUM  // in halves: one lane after the other takes as long as ten exponentials
    return SUM(v);
#endif
    float s = 0;
    for (int i = 0; i < LANES; ++i) s += v[i];
    return s;
}
