// Sums over columns of a coordinate-major matrix, compiled once for each instruction set. Included inside the anonymous
// namespace of adaptive/portable.cpp, adaptive/avx2.cpp and adaptive/avx512.cpp, which define LANES, F, a register of so many floats, bits_above(F, F),
// and load<Kind>(from).

constexpr int64_t kStrip = 512;  // classes whose sums stay in the first cache

constexpr int kParts = 16 / LANES;

// `Blocks` neighbouring blocks of 16 classes; with few of them, columns take turns so that no sum waits for itself.
template <Kind K, int Blocks>
void sum_blocks(const char* from, const int32_t* ids, const float* c, const float* d, int64_t m, float* est, float* var) {
    constexpr int64_t size = item_bytes(K);
    constexpr int chains = Blocks == 1 ? 2 : 1, parts = Blocks * kParts;
    F e[chains][parts] = {}, v[chains][parts] = {};
    const auto add = [&](int chain, int64_t j) {
        const char* column = from + int64_t{ids[j]} * 64 * size;
        #pragma GCC unroll 16
        for (int p = 0; p < parts; ++p) {
            const F w = load<K>(column + p * LANES * size);
            e[chain][p] += c[j] * w;
            v[chain][p] += d[j] * (w * w);
        }
    };
    int64_t j = 0;
    for (; j + chains <= m; j += chains) {
        #pragma GCC unroll 2
        for (int chain = 0; chain < chains; ++chain) add(chain, j + chain);
    }
    for (; j < m; ++j) add(0, j);
    for (int p = 0; p < parts; ++p) {
        const F whole = chains == 1 ? e[0][p] : e[0][p] + e[chains - 1][p];
        const F square = chains == 1 ? v[0][p] : v[0][p] + v[chains - 1][p];
        std::memcpy(est + p * LANES, &whole, sizeof whole);
        std::memcpy(var + p * LANES, &square, sizeof square);
    }
}

template <Kind K>
void moments_of(const char* group, const int32_t* ids, const float* c, const float* d, int64_t m, unsigned blocks, float* est,
                float* var) {
    if (LANES == 16 && blocks == 15) return sum_blocks<K, LANES == 16 ? 4 : 1>(group, ids, c, d, m, est, var);
    for (; blocks != 0; blocks &= blocks - 1) {
        const int b = __builtin_ctz(blocks);
        sum_blocks<K, 1>(group + b * 16 * item_bytes(K), ids, c, d, m, est + b * 16, var + b * 16);
    }
}

void moments(const void* group, Kind kind, const int32_t* ids, const float* c, const float* d, int64_t m, unsigned blocks,
             float* est, float* var) {
    const auto of = kind == Kind::f32 ? moments_of<Kind::f32> : kind == Kind::f16 ? moments_of<Kind::f16> : moments_of<Kind::bf16>;
    of(static_cast<const char*>(group), ids, c, d, m, blocks, est, var);
}

// A block of m <= 16 neighbouring columns: s[i] = sum_j x[j] w[j][i];  est += s, and where they are asked for
// square += s^2. `columns` starts at the block's first column.
void block(const float* columns, int64_t stride, const float* x, int64_t m, int64_t first, int64_t n,
           float* __restrict est, float* __restrict square) {
    float strip[kStrip];
    for (int64_t at = 0; at < n; at += kStrip) {
        const int64_t size = n - at < kStrip ? n - at : kStrip;
        for (int64_t i = 0; i < size; ++i) strip[i] = 0.f;
        int64_t j = 0;
        for (; j + 4 <= m; j += 4) {
            const float* w0 = columns + j * stride + first + at;
            const float *w1 = w0 + stride, *w2 = w1 + stride, *w3 = w2 + stride;
            const float c0 = x[j], c1 = x[j + 1], c2 = x[j + 2], c3 = x[j + 3];
            for (int64_t i = 0; i < size; ++i) strip[i] += (c0 * w0[i] + c1 * w1[i]) + (c2 * w2[i] + c3 * w3[i]);
        }
        for (; j < m; ++j) {
            const float* w0 = columns + j * stride + first + at;
            const float c0 = x[j];
            for (int64_t i = 0; i < size; ++i) strip[i] += c0 * w0[i];
        }
        for (int64_t i = 0; i < size; ++i) est[at + i] += strip[i];
        if (square != nullptr)
            for (int64_t i = 0; i < size; ++i) square[at + i] += strip[i] * strip[i];
    }
}

template <bool Drawn>
bool widths_of(const WidthRule& r, const WidthArrays& from, int64_t first, int64_t n, float* __restrict est,
               float* __restrict rad) {
    const float *base = from.base + first, *size = from.size + first, *peak = from.peak + first, *read = from.read + first;
    const float *sum = from.sum + first, *sampled = from.sampled + first, *square = from.square + first;
    est += first, rad += first;
    const double keep = 1 - r.unit, more = 1 + 2 * r.unit, less = 1 - 2 * r.unit;
    const double inverse = Drawn ? 1 / r.drawn : 0;
    int bad = 0;
    for (int64_t i = 0; i < n; ++i) {
        const double start = base[i] + r.shared, all = size[i];
        // squares are rounded down, and float32 keeps their sum to `unit`
        const double rest = all * all - read[i] * keep;
        double width = r.factor * r.left * __builtin_sqrt(rest > 0 ? rest : 0);
        double value = start + sum[i] + sampled[i];
        if (Drawn) {
            const double mean = sampled[i] * inverse, spread = square[i] * inverse * more - mean * mean * less;
            const double chance = r.by_spread * __builtin_sqrt(spread > 0 ? spread : 0) + r.by_peak * peak[i];
            const bool closer = chance < width;
            width = closer ? chance + r.by_drawn * all : width;
            value = closer ? start + sum[i] + mean * r.population : value;
        }
        bad |= !(__builtin_fabs(value) < 1e30) | !(width < 1e30);
        est[i] = static_cast<float>(value);
        const double rounding = r.by_size * all + 0x1p-22 * (__builtin_fabs(start) + __builtin_fabs(value)) + r.fixed;
        rad[i] = static_cast<float>((width + rounding) * (1 + 0x1p-20));
    }
    return bad == 0;
}

bool widths(const WidthRule& r, const WidthArrays& from, int64_t first, int64_t n, float* est, float* rad) {
    return r.drawn > 0 ? widths_of<true>(r, from, first, n, est, rad) : widths_of<false>(r, from, first, n, est, rad);
}

float largest(const float* values, int64_t n) {
    F most[4];
    std::memcpy(most, values, sizeof most);
    for (int64_t i = 4 * LANES; i + 4 * LANES <= n; i += 4 * LANES) {
        F here[4];
        std::memcpy(here, values + i, sizeof here);
        for (int p = 0; p < 4; ++p) most[p] = here[p] > most[p] ? here[p] : most[p];
    }
    for (int p = 1; p < 4; ++p) most[0] = most[p] > most[0] ? most[p] : most[0];
    float all = most[0][0];
    for (int i = 1; i < LANES; ++i) all = most[0][i] > all ? most[0][i] : all;
    return all;
}

uint64_t above(const float* values, const float* limits) {
    uint64_t bits = 0;
    for (int i = 0; i < 64; i += LANES) {
        F value, limit;
        std::memcpy(&value, values + i, sizeof value);
        std::memcpy(&limit, limits + i, sizeof limit);
        bits |= static_cast<uint64_t>(bits_above(value, limit)) << i;
    }
    return bits;
}
