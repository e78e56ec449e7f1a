// What is made of estimates, once for every instruction set, on the compiler's vector types. Included behind kernels/common/vectors.inl in
// the anonymous namespace of a translation unit that defines LANES.

constexpr float kMassError = 0x1p-14f;  // of a mass, relatively: exponents of up to 88 in float32, and what vexp is off

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

void radii(const uint8_t* tile, const TileLayout& layout, const ScanRadii& all, float beta, float* radii, float* part, float* bend) {
    constexpr float kLost = 0x1p-118f;  // more than all terms that became 0, or were flushed to it
    float largest[2 * kMostSegments];
    std::memcpy(largest, tile + layout.largest, static_cast<size_t>(layout.segments) * 8);
    for (int i = 0; i < 2 * layout.segments; ++i) {
        largest[i] *= all.unit;
        if (all.squared) largest[i] *= largest[i];
    }
    for (int64_t v = 0; v < kMostLanes; v += LANES) {
        F sum = splat(kLost);
        for (int s = 0; s < layout.segments; ++s)
            sum = fused(splat(largest[2 * s]), load(&all.error[s][v]), fused(splat(largest[2 * s + 1]), load(&all.scale[s][v]), sum));
        const F own = (all.squared ? root(sum) : sum) * load(&all.back[v]);
        store(radii + v, own);
        if (part == nullptr) continue;
        // A class has its share of a gap, no less than kLeastShare: so much more of what does not shrink with the share.
        const F high = (own + load(&all.constant[v]) * (1 / kLeastShare)) * beta, first = high + kMassError / kLeastShare;
        const I within = (I)(high < splat(kMostExponent));
        store(part + v, pick(within, first, splat(kInfinity)));
        store(bend + v, pick(within, (vexp(high) * (1 + 0x1p-15f) - 1.f - high) / first, F{}));
    }
}

uint64_t reach(const float* est, const float* shares, float radius, float least, float* upper) {
    uint64_t found = 0;
    for (int64_t v = 0; v < kTile / LANES; ++v) {
        const F end = fused(load(shares + v * LANES), splat(radius), load(est + v * LANES));
        store(upper + v * LANES, end);
        found |= which((I)(end >= splat(least))) << (v * LANES);
    }
    return found;
}

uint64_t masses(const float* est, const float* shares, float beta, float edge, float bend, uint64_t keep, float* mass, float* shared, float sums[2]) {
    uint64_t above = 0;
    F all = F{}, parts = F{};
    for (int64_t v = 0; v < kTile / LANES; ++v) {
        const F e = load(est + v * LANES);
        I gone = (I)(e >= splat(edge));
        above |= which(gone) << (v * LANES);
        if (keep != ~uint64_t{0})
            for (int i = 0; i < LANES; ++i)
                if (!(keep >> (v * LANES + i) & 1)) gone[i] = -1;
        const F m = pick(gone, F{}, vexp(vmax((e - edge) * beta, splat(kFloor)))), s = load(shares + v * LANES), part = m * fused(s * bend, s, s);
        store(mass + v * LANES, m);
        store(shared + v * LANES, part);
        all += m;
        parts += part;
    }
    sums[0] = sum_lanes(all);
    sums[1] = sum_lanes(parts);
    return above & keep;
}

void linked(const float* est, float add, Link link, float* out) {
    for (int64_t v = 0; v < kTile / LANES; ++v) {
        const F e = load(est + v * LANES);
        store(out + v * LANES, pick((I)(e > splat(-kInfinity)), vlink(link, e + add), splat(-kInfinity)));
    }
}

void surprisals(const float* est, float beta, float edge, float lift, const float* mass, float* shared, float sums[3]) {
    F moment = F{}, leaning = F{}, all = F{};
    for (int64_t v = 0; v < kTile / LANES; ++v) {
        const F y = vmin(vmax((load(est + v * LANES) - edge) * beta, splat(kFloor)), F{}), part = load(shared + v * LANES), weighed = part * (splat(lift) - y);
        moment += load(mass + v * LANES) * y;
        leaning -= part * y;
        all += weighed;
        store(shared + v * LANES, weighed);
    }
    sums[0] = sum_lanes(moment);
    sums[1] = sum_lanes(leaning);
    sums[2] = sum_lanes(all);
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
void rotate_columns(const float* panel, int64_t dim, int64_t width, const float* d, float* x) {
    D low[Queries][Vectors] = {}, high[Queries][Vectors] = {};
    for (int64_t start = 0; start < dim; start += kProducts) {
        const int64_t stop = start + kProducts < dim ? start + kProducts : dim;
        F part[Queries][Vectors] = {};
        for (int64_t j = start; j < stop; ++j) {
            F r[Vectors];
#pragma GCC unroll 4
            for (int v = 0; v < Vectors; ++v) r[v] = load(panel + j * kPanel + v * LANES);
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
            std::memcpy(x + q * width + v * LANES, &both, sizeof both);
        }
}

void rotate(const float* rotation, int64_t dim, int64_t width, int64_t first, int64_t stop, const float* d, int64_t n, float* x) {
    constexpr int kVectors = kPanel / LANES < 2 ? 1 : 2;
    for (int64_t column = first; column < stop; column += kVectors * LANES) {
        const float* panel = rotation + column / kPanel * kPanel * dim + column % kPanel;
        int64_t q = 0;
        for (; q + 4 <= n; q += 4) rotate_columns<4, kVectors>(panel, dim, width, d + q * dim, x + q * width + column);
        for (; q < n; ++q) rotate_columns<1, kVectors>(panel, dim, width, d + q * dim, x + q * width + column);
    }
}
