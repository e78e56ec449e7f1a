// Rows as they are stored against queries in float32 and float64, the same lines for every instruction set. Included after
// kernels/common/all.inl (F, D, one_float, dot_block_wide), where these are defined:
//
//   load_some<Kind>(row, j): LANES entries from j on;  low_half, high_half(F): half of them each in float64;
//   fused(a, b, c) = a * b + c of F, in one rounding where there is an instruction for that;
//   kRowsFor[n]: rows that are multiplied with n queries at once, so that all sums stay in registers, and kQueries, the most queries;
//   OWN_PARTS: with it, load_part of rows and of x;  OWN_SUMS: with it, store_sums.

#ifndef OWN_PARTS
// The entries from j on of which `left` are left, and zeros behind them.
template <Kind K>
inline F load_part(const void* row, int64_t j, int64_t left) {
    if (left >= LANES) return load_some<K>(row, j);
    float some[LANES] = {};
    for (int64_t i = 0; i < left; ++i) some[i] = one_float(row, K, j + i);
    return load(some);
}
inline D load_part(const double* x, int64_t left) {
    if (left >= kHalf) return load(x);
    double some[kHalf] = {};
    for (int64_t i = 0; i < left; ++i) some[i] = x[i];
    return load(some);
}
#endif

#ifndef OWN_SUMS
template <int R, int N>
inline void store_sums(const F (&sum)[R][N], float* out, int64_t stride) {
    for (int q = 0; q < N; ++q)
        for (int r = 0; r < R; ++r) out[q * stride + r] = sum_lanes(sum[r][q]);
}
#endif

template <Kind K>
inline const char* row_at(const void* rows, int64_t dim, int64_t r) {
    return static_cast<const char*>(rows) + r * dim * item_bytes(K);
}

template <Kind K, int R, int N>
void rows_some(const void* rows, int64_t dim, const float* x, float* out, int64_t stride) {
    F sum[R][N];
    const char* row[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        row[r] = row_at<K>(rows, dim, r);
#pragma GCC unroll 16
        for (int q = 0; q < N; ++q) sum[r][q] = F{};
    }
    const auto add = [&](const F (&w)[R], int64_t j) __attribute__((always_inline)) {
#pragma GCC unroll 16
        for (int q = 0; q < N; ++q) {
            const F v = load(x + q * query_stride(dim) + j);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) sum[r][q] = fused(w[r], v, sum[r][q]);
        }
    };
    F w[R];
    int64_t j = 0;
    for (; j + LANES <= dim; j += LANES) {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) w[r] = load_some<K>(row[r], j);
        add(w, j);
    }
    if (j < dim) {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) w[r] = load_part<K>(row[r], j, dim - j);
        add(w, j);
    }
    store_sums(sum, out, stride);
}

template <Kind K, int N>
void rows_all(const void* rows, int64_t dim, int64_t count, const float* x, float* out, int64_t stride) {
    constexpr int R = kRowsFor[N];
    int64_t r = 0;
    for (; r + R <= count; r += R) rows_some<K, R, N>(row_at<K>(rows, dim, r), dim, x, out + r, stride);
    for (; r < count; ++r) rows_some<K, 1, N>(row_at<K>(rows, dim, r), dim, x, out + r, stride);
}

template <Kind K, int N = kQueries>
void rows_of(const void* rows, int64_t dim, int64_t count, const float* x, int n, float* out, int64_t stride) {
    for (; n >= N; n -= N, x += N * query_stride(dim), out += N * stride) rows_all<K, N>(rows, dim, count, x, out, stride);
    if constexpr (N > 1) rows_of<K, N - 1>(rows, dim, count, x, n, out, stride);
}

void dense_rows(const void* rows, Kind kind, int64_t dim, int64_t count, const float* x, int n, float* out, int64_t stride) {
    const auto of = kind == Kind::f32 ? rows_of<Kind::f32> : kind == Kind::f16 ? rows_of<Kind::f16> : rows_of<Kind::bf16>;
    of(rows, dim, count, x, n, out, stride);
}

// As many sums as block_some has, so that both say the same to the bit: its zeros beyond dim add nothing.
template <Kind K>
double dot_one(const char* row, int64_t dim, const double* x) {
    constexpr int kVectors = kSums / 2;
    D sum[kSums] = {};
    int64_t j = 0;
    for (; j + kVectors * LANES <= dim; j += kVectors * LANES)
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
            const F w = load_some<K>(row, j + v * LANES);
            sum[2 * v] = fused(low_half(w), load(x + j + v * LANES), sum[2 * v]);
            sum[2 * v + 1] = fused(high_half(w), load(x + j + v * LANES + kHalf), sum[2 * v + 1]);
        }
    for (int v = 0; j < dim; j += LANES, ++v) {
        const F w = load_part<K>(row, j, dim - j);
        sum[2 * v] = fused(low_half(w), load_part(x + j, dim - j), sum[2 * v]);
        sum[2 * v + 1] = fused(high_half(w), load_part(x + j + kHalf, dim - j - kHalf), sum[2 * v + 1]);
    }
    return fold(sum);
}

// One row in float64, zeros up to `wide`.
template <Kind K>
void widen64(const void* row, int64_t dim, int64_t wide, double* out) {
    for (int64_t j = 0; j < wide; j += LANES) {
        const F w = j < dim ? load_part<K>(row, j, dim - j) : F{};
        const D low = low_half(w), high = high_half(w);
        std::memcpy(out + j, &low, sizeof low);
        std::memcpy(out + j + kHalf, &high, sizeof high);
    }
}

void dot_block(const void* rows, Kind kind, int64_t dim, int64_t count, const double* x, int n, double* scratch, double* out,
               int64_t stride) {
    const int64_t wide = (dim + kWide - 1) / kWide * kWide;
    const auto take = kind == Kind::f32 ? widen64<Kind::f32> : kind == Kind::f16 ? widen64<Kind::f16> : widen64<Kind::bf16>;
    for (int64_t r = 0; r < count; ++r)
        take(static_cast<const char*>(rows) + r * dim * item_bytes(kind), dim, wide, scratch + r * wide);
    dot_block_wide(scratch, wide, count, x, n, out, stride);
}

template <Kind K>
void dot_all(const void* weight, int64_t dim, const int64_t* ids, int64_t n, const double* x, double* out) {
    constexpr int64_t kAhead = LANES == 16 ? 4 : 2;
    for (int64_t i = 0; i < n; ++i) {
        if (ids != nullptr && i + kAhead < n) {  // the hardware does not foresee them
            const char* next = row_at<K>(weight, dim, ids[i + kAhead]);
            for (int64_t b = 0; b < dim * item_bytes(K); b += 64) __builtin_prefetch(next + b);
        }
        out[i] = dot_one<K>(row_at<K>(weight, dim, ids == nullptr ? i : ids[i]), dim, x);
    }
}

void dot_rows(const void* weight, Kind kind, int64_t dim, const int64_t* ids, int64_t n, const double* x, double* out) {
    const auto of = kind == Kind::f32 ? dot_all<Kind::f32> : kind == Kind::f16 ? dot_all<Kind::f16> : dot_all<Kind::bf16>;
    of(weight, dim, ids, n, x, out);
}
