// What is made of estimates, once for every instruction set, on the compiler's vector types. Included behind kernels/common/vectors.inl in
// the anonymous namespace of a translation unit that defines LANES.

constexpr float kMassError = 0x1p-14f;  // of a mass, relatively: exponents of up to 88 in float32, and what vexp is off

typedef uint16_t H __attribute__((vector_size(LANES * 2)));

inline F fused(F a, F b, F c) {
#ifdef FUSED
    return FUSED(a, b, c);
#else
    F out;
    for (int i = 0; i < LANES; ++i) out[i] = std::fma(a[i], b[i], c[i]);
    return out;
#endif
}
// A root, or up to 2^-9 more, relatively: radii may be wider than they have to be.
inline F root(F a) {
#ifdef INVERSE_ROOT  // of 11 bits at the least: a root itself takes as long as an exponential
    return a * (F)INVERSE_ROOT(vmax(a, splat(1e-37f))) * (1 + 0x1p-10f) + 1e-37f;
#else
    F out;
    for (int i = 0; i < LANES; ++i) out[i] = std::sqrt(a[i]);
    return out;
#endif
}
// Error norms in bfloat16.
inline F load_error(const uint8_t* from) {
#ifdef WIDEN_BFLOATS
    return WIDEN_BFLOATS(from);
#else
    H half;
    std::memcpy(&half, from, sizeof half);
    return floats((I)(__builtin_convertvector(half, U) << 16));
#endif
}
inline F load_bytes(const uint8_t* from) {
    F v;
    std::memcpy(&v, from, sizeof v);
    return v;
}
inline uint64_t which(I mask) {
#ifdef MASK_OF
    return MASK_OF(mask);
#else
    uint64_t out = 0;
    for (int i = 0; i < LANES; ++i) out |= static_cast<uint64_t>(mask[i] & 1) << i;
    return out;
#endif
}

// The radii of LANES classes from `first` on: their squares where `Squared`.
template <bool Squared>
inline F radii_of(const uint8_t* tile, const TileLayout& layout, const ScanRadius& radius, int64_t first) {
    F sum = F{};
    for (int s = 0; s < layout.segments; ++s) {
        F error = load_error(tile + layout.errors + (s * kTile + first) * 2), scale = load_bytes(tile + layout.scales + (s * kTile + first) * 4);
        if (Squared) error *= error, scale *= scale;
        sum = fused(error, splat(radius.error[s]), fused(scale, splat(radius.scale[s]), sum));
    }
    return sum;
}

template <bool Squared>
uint64_t reach_of(const float* est, const uint8_t* tile, const TileLayout& layout, const ScanRadius& radius, float least, float* upper) {
    uint64_t found = 0;
    F sums[kTile / LANES];
    for (int64_t v = 0; v < kTile / LANES; ++v) {
        const F sum = radii_of<Squared>(tile, layout, radius, v * LANES), e = load(est + v * LANES) + radius.constant;
        sums[v] = sum;
        const F gap = least - e;  // reached where sqrt(sum) >= gap, without the root
        const I mask = Squared ? (I)(gap * vmax(gap, -gap) <= sum) : (I)(gap <= sum);
        found |= which(mask) << (v * LANES);
    }
    if (found == 0) return 0;
    for (int64_t v = 0; v < kTile / LANES; ++v)
        store(upper + v * LANES, load(est + v * LANES) + radius.constant + (Squared ? root(sums[v]) : sums[v]));
    return found;
}

uint64_t reach(const float* est, const uint8_t* tile, const TileLayout& layout, const ScanRadius& radius, float least, float* upper) {
    return radius.squared ? reach_of<true>(est, tile, layout, radius, least, upper) : reach_of<false>(est, tile, layout, radius, least, upper);
}

template <bool Squared>
uint64_t masses_of(const float* est, const uint8_t* tile, const TileLayout& layout, const ScanRadius& radius, float beta, float edge, uint64_t keep,
                   float* mass, float* gap, float sums[2]) {
    uint64_t above = 0;
    F all = F{}, gaps = F{};
    for (int64_t v = 0; v < kTile / LANES; ++v) {
        const F e = load(est + v * LANES);
        const F sum = radii_of<Squared>(tile, layout, radius, v * LANES), r = (Squared ? root(sum) : sum) + radius.constant;
        I over = (I)(e >= splat(edge)), gone = over;
        above |= which(over) << (v * LANES);
        if (keep != ~uint64_t{0})
            for (int i = 0; i < LANES; ++i)
                if (!(keep >> (v * LANES + i) & 1)) gone[i] = -1;
        const F low = (e - edge) * beta, high = low + r * beta;
        F m = pick(gone, F{}, vexp(low)), g = pick(gone, F{}, vexp(high) - m + m * kMassError);
        g = pick((I)(high > splat(87.f)) & ~gone, splat(kInfinity), g);
        store(mass + v * LANES, m);
        store(gap + v * LANES, g);
        all += m;
        gaps += g;
    }
    sums[0] = sum_lanes(all);
    sums[1] = sum_lanes(gaps);
    return above & keep;
}

uint64_t masses(const float* est, const uint8_t* tile, const TileLayout& layout, const ScanRadius& radius, float beta, float edge, uint64_t keep,
                float* mass, float* gap, float sums[2]) {
    return radius.squared ? masses_of<true>(est, tile, layout, radius, beta, edge, keep, mass, gap, sums)
                          : masses_of<false>(est, tile, layout, radius, beta, edge, keep, mass, gap, sums);
}

typedef double D __attribute__((vector_size(LANES * 4)));  // half as many as of floats
typedef float HalfF __attribute__((vector_size(LANES * 2)));
constexpr int64_t kProducts = 8;  // that are summed in float32 before they join a sum in float64

struct Halves {
    HalfF low, high;
};
inline Halves halves(F v) {
    Halves out;
    std::memcpy(&out, &v, sizeof v);
    return out;
}

// Some columns of some queries.
template <int Queries, int Vectors>
void rotate_columns(const float* rotation, int64_t dim, int64_t width, const float* d, float* x, int64_t column) {
    D low[Queries][Vectors] = {}, high[Queries][Vectors] = {};
    for (int64_t start = 0; start < dim; start += kProducts) {
        const int64_t stop = start + kProducts < dim ? start + kProducts : dim;
        F part[Queries][Vectors] = {};
        for (int64_t j = start; j < stop; ++j) {
            F r[Vectors];
#pragma GCC unroll 4
            for (int v = 0; v < Vectors; ++v) r[v] = load(rotation + j * width + column + v * LANES);
#pragma GCC unroll 4
            for (int q = 0; q < Queries; ++q) {
                const F one = splat(d[q * dim + j]);
#pragma GCC unroll 4
                for (int v = 0; v < Vectors; ++v) part[q][v] = fused(r[v], one, part[q][v]);
            }
        }
        for (int q = 0; q < Queries; ++q)
            for (int v = 0; v < Vectors; ++v) {
                const Halves both = halves(part[q][v]);
                low[q][v] += __builtin_convertvector(both.low, D);
                high[q][v] += __builtin_convertvector(both.high, D);
            }
    }
    for (int q = 0; q < Queries; ++q)
        for (int v = 0; v < Vectors; ++v) {
            const Halves both = {__builtin_convertvector(low[q][v], HalfF), __builtin_convertvector(high[q][v], HalfF)};
            std::memcpy(x + q * width + column + v * LANES, &both, sizeof both);
        }
}

void rotate(const float* rotation, int64_t dim, int64_t width, int64_t first, int64_t stop, const float* d, int64_t n, float* x) {
    for (int64_t column = first; column < stop;) {
        int64_t q = 0;
        for (; q + 4 <= n; q += 4) rotate_columns<4, 32 / LANES < 2 ? 1 : 2>(rotation, dim, width, d + q * dim, x + q * width, column);
        for (; q < n; ++q) rotate_columns<1, 32 / LANES < 2 ? 1 : 2>(rotation, dim, width, d + q * dim, x + q * width, column);
        column += (32 / LANES < 2 ? 1 : 2) * LANES;
    }
}
