// The kernels of encode/task.h, once for each instruction set. Included inside the anonymous namespace of a translation unit that
// defines LANES (floats of one vector), F, load<Kind>, and ROWS, the rows of a tile.

typedef int32_t I __attribute__((vector_size(LANES * 4)));
typedef float H __attribute__((vector_size(LANES * 2)));   // half of F, and as much of it as a register has in float64
typedef double D __attribute__((vector_size(LANES * 4)));
typedef uint8_t B __attribute__((vector_size(LANES)));

#include "kernels/int8_step.inl"

inline F get(const float* p) {
    F v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline void put(float* p, F v) { std::memcpy(p, &v, sizeof v); }
inline F splat(float x) { return x - F{}; }  // not x + 0, which is an addition: it turns -0 into 0
inline F fused(F a, F b, F c) {  // a * b + c
#ifdef FUSED
    return FUSED(a, b, c);
#else
    return a * b + c;
#endif
}
inline F pick(I mask, F yes, F no) { return reinterpret_cast<F>((mask & reinterpret_cast<I>(yes)) | (~mask & reinterpret_cast<I>(no))); }
inline F vmax(F a, F b) { return pick(a > b, a, b); }
inline F vmin(F a, F b) { return pick(a < b, a, b); }

// Whole numbers from 0 to 255 as bytes. (Compilers take AVX2's lanes apart, one by one.)
inline B bytes_of(I v) {
#if defined(__AVX2__) && LANES == 8
    const __m256i wide = reinterpret_cast<__m256i>(v);
    const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1)), all = _mm_packus_epi16(half, half);
    B out;
    std::memcpy(&out, &all, sizeof out);
    return out;
#else
    return __builtin_convertvector(v, B);
#endif
}

// The first `there` entries, zeros behind.
inline F some(const float* p, int64_t there) {
    float all[LANES] = {};
    std::memcpy(all, p, there * sizeof(float));
    return get(all);
}

// Sums run in 16 lanes whatever a vector has, number j goes to lane j mod 16, and then the upper half
// of the lanes to the lower one, until one is left. No product is fused with a sum, so that all levels write the same.
constexpr int kVectors = kSumLanes / LANES;

template <typename S>
struct Lanes {
    template <typename V>
    explicit Lanes(const V* sums) {
        for (size_t i = 0; i < kSumLanes * sizeof(S) / sizeof(V); ++i) std::memcpy(lane + i * sizeof(V) / sizeof(S), &sums[i], sizeof(V));
    }
    S sum() { return folded(lane); }
    S lane[kSumLanes];
};

template <Kind K>
void narrow_kind(const char* row, const double* centre, const double* mean, int64_t dim, float* out, double* base, double* square) {
    constexpr int64_t kItem = item_bytes(K);
    D inner[2 * kVectors] = {}, squares[2 * kVectors] = {};
    int64_t j = 0;
    for (; j + kSumLanes <= dim; j += kSumLanes) {
#pragma GCC unroll 8
        for (int s = 0; s < 2 * kVectors; s += 2) {
            const int64_t at = j + s * LANES / 2;
            const F whole = load<K>(row + at * kItem);
            H half[2];
            std::memcpy(half, &whole, sizeof half);
#pragma GCC unroll 2
            for (int h = 0; h < 2; ++h) {
                D c, m;
                std::memcpy(&c, centre + at + h * LANES / 2, sizeof c);
                std::memcpy(&m, mean + at + h * LANES / 2, sizeof m);
                const D v = __builtin_convertvector(half[h], D) - c;
                half[h] = __builtin_convertvector(v, H);
                inner[s + h] += v * m;
                squares[s + h] += v * v;
            }
            std::memcpy(out + at, half, sizeof half);
        }
    }
    Lanes<double> a(inner), b(squares);
    for (int64_t i = 0; j + i < dim; ++i) {
        const double v = static_cast<double>(one_float(row, K, j + i)) - centre[j + i];
        out[j + i] = static_cast<float>(v);
        a.lane[i] += v * mean[j + i];
        b.lane[i] += v * v;
    }
    *base = a.sum();
    *square = b.sum();
}

void narrow(const void* row, Kind kind, const double* centre, const double* mean, int64_t dim, float* out, double* base,
            double* square) {
    const auto take = kind == Kind::f32   ? narrow_kind<Kind::f32>
                      : kind == Kind::f16 ? narrow_kind<Kind::f16>
                                          : narrow_kind<Kind::bf16>;
    take(static_cast<const char*>(row), centre, mean, dim, out, base, square);
}

// ROWS rows against C vectors of columns: all sums of a chunk stay in registers.
template <int C>
inline void tile(const float* rows, int64_t stride, int64_t chunk, const float* columns, float* out, int64_t out_stride, bool first) {
    F sum[ROWS][C];
    #pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
        #pragma GCC unroll 4
        for (int c = 0; c < C; ++c) sum[r][c] = F{};
    for (int64_t k = 0; k < chunk; ++k) {
        F b[C];
        #pragma GCC unroll 4
        for (int c = 0; c < C; ++c) b[c] = get(columns + (k * C + c) * LANES);
        #pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
            const F a = splat(rows[r * stride + k]);
            #pragma GCC unroll 4
            for (int c = 0; c < C; ++c) sum[r][c] = fused(a, b[c], sum[r][c]);
        }
    }
    #pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
        #pragma GCC unroll 4
        for (int c = 0; c < C; ++c) {
            float* to = out + r * out_stride + c * LANES;
            put(to, first ? sum[r][c] : get(to) + sum[r][c]);
        }
}

template <int C>
void panel(const float* rows, int64_t stride, int64_t dim, const float* packed, float* out, int64_t out_stride) {
    for (int64_t start = 0; start < dim; start += kTileChunk) {
        const int64_t chunk = start + kTileChunk < dim ? kTileChunk : dim - start;
        for (int64_t r = 0; r < kBlock; r += ROWS)
            tile<C>(rows + r * stride + start, stride, chunk, packed + start * C * LANES, out + r * out_stride, out_stride, start == 0);
    }
}

void rotate(const float* rows, int64_t stride, int64_t dim, const float* packed, int64_t columns, float* out, int64_t out_stride) {
    for (int64_t c = 0; c < columns; c += 3 * LANES) {
        const int64_t left = (columns - c + LANES - 1) / LANES;
        const auto take = left >= 3 ? panel<3> : left == 2 ? panel<2> : panel<1>;
        take(rows, stride, dim, packed + c * dim, out + c, out_stride);
    }
}

bool within(const float* values, int64_t n, float limit) {
    I good = I{} == I{};
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) {
        const F v = get(values + j);
        good &= (v <= splat(limit)) & (v >= splat(-limit));
    }
    const F v = some(values + j, n - j);
    good &= (v <= splat(limit)) & (v >= splat(-limit));
    for (int i = 0; i < LANES; ++i)
        if (good[i] == 0) return false;
    return true;
}

float square(const float* values, int64_t n) {
    F sums[kVectors] = {};
    int64_t j = 0;
    for (; j + kSumLanes <= n; j += kSumLanes)
#pragma GCC unroll 4
        for (int s = 0; s < kVectors; ++s) {
            const F v = get(values + j + s * LANES);
            sums[s] += v * v;
        }
    Lanes<float> all(sums);
    for (int64_t i = 0; j + i < n; ++i) all.lane[i] += values[j + i] * values[j + i];
    return all.sum();
}

float largest_size(const float* values, int64_t n) {
    F most = F{};
    const auto take = [&](F v) { most = vmax(vmax(v, -v), most); };
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) take(get(values + j));
    take(some(values + j, n - j));
    float out = 0;
    for (int i = 0; i < LANES; ++i) out = most[i] > out ? most[i] : out;
    return out;
}

// The integers of the codes go to `whole`, their bytes to `codes`: u = int8_codes(value / step) + 128, whole = u - 128. Returns sum whole^2.
float quantise(const float* values, int64_t n, float inverse, float* whole, uint8_t* codes) {
    F squares[kVectors] = {};
    const auto take = [&](F v, B* bytes) {
        const F w = int8_codes<float>(v * inverse);
        *bytes = bytes_of(__builtin_convertvector(w, I) + 128);
        return w;
    };
    int64_t j = 0;
    B bytes;
    for (; j + kSumLanes <= n; j += kSumLanes)
#pragma GCC unroll 4
        for (int s = 0; s < kVectors; ++s) {
            const int64_t at = j + s * LANES;
            const F w = take(get(values + at), &bytes);
            std::memcpy(codes + at, &bytes, sizeof bytes);
            put(whole + at, w);
            squares[s] += w * w;
        }
    Lanes<float> sum(squares);
    for (int64_t at = j; at < n; at += LANES) {
        const int64_t there = n - at < LANES ? n - at : LANES;
        const F w = take(some(values + at, there), &bytes);
        std::memcpy(codes + at, &bytes, there);
        std::memcpy(whole + at, &w, there * sizeof(float));
        for (int i = 0; i < there; ++i) sum.lane[at - j + i] += w[i] * w[i];
    }
    return sum.sum();
}

void code(float* values, int64_t n, float* work, uint8_t* codes, float* scale, float* size) {
    const float unit = int8_step(largest_size(values, n));
    const float sum = quantise(values, n, unit > 0 ? 1 / unit : 0, work, codes);
    *scale = unit;
    *size = unit * std::sqrt(sum) * (1 + static_cast<float>(n + 8) * 0x1p-24f);
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) put(values + j, get(values + j) - get(work + j) * unit);
    for (; j < n; ++j) values[j] -= work[j] * unit;
}
