// Rows as they are stored against queries in float32 and float64, by vectors of four: for instruction sets with registers of 128
// bits. Included after kernels/common/all.inl (F, D, one_float, dot_block_wide) with LANES 4, where these are defined:
//
//   load4<Kind>(row, j): four entries from j on;  low_half, high_half(F): two of them in float64;
//   fused(a, b, c) = a * b + c, in one rounding where there is an instruction for that, for F and D.

template <Kind K>
inline const char* row_at(const void* rows, int64_t dim, int64_t r) {
    return static_cast<const char*>(rows) + r * dim * item_bytes(K);
}

// R rows x N queries: all sums stay in registers.
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
    int64_t j = 0;
    for (; j + 4 <= dim; j += 4) {
        F w[R];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) w[r] = load4<K>(row[r], j);
#pragma GCC unroll 16
        for (int q = 0; q < N; ++q) {
            const F v = load(x + q * query_stride(dim) + j);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) sum[r][q] = fused(w[r], v, sum[r][q]);
        }
    }
    for (int q = 0; q < N; ++q)
        for (int r = 0; r < R; ++r) {
            float tail = 0;
            for (int64_t i = j; i < dim; ++i) tail += one_float(row[r], K, i) * x[q * query_stride(dim) + i];
            const F s = sum[r][q];
            out[q * stride + r] = ((s[0] + s[2]) + (s[1] + s[3])) + tail;
        }
}

template <Kind K, int R, int N>
void rows_all(const void* rows, int64_t dim, int64_t count, const float* x, float* out, int64_t stride) {
    int64_t r = 0;
    for (; r + R <= count; r += R) rows_some<K, R, N>(row_at<K>(rows, dim, r), dim, x, out + r, stride);
    for (; r < count; ++r) rows_some<K, 1, N>(row_at<K>(rows, dim, r), dim, x, out + r, stride);
}

template <Kind K>
void rows_of(const void* rows, int64_t dim, int64_t count, const float* x, int n, float* out, int64_t stride) {
    for (; n >= 4; n -= 4, x += 4 * query_stride(dim), out += 4 * stride) rows_all<K, 4, 4>(rows, dim, count, x, out, stride);
    if (n == 3) rows_all<K, 4, 3>(rows, dim, count, x, out, stride);
    else if (n == 2) rows_all<K, 8, 2>(rows, dim, count, x, out, stride);
    else if (n == 1) rows_all<K, 8, 1>(rows, dim, count, x, out, stride);
}

void dense_rows(const void* rows, Kind kind, int64_t dim, int64_t count, const float* x, int n, float* out, int64_t stride) {
    const auto of = kind == Kind::f32 ? rows_of<Kind::f32> : kind == Kind::f16 ? rows_of<Kind::f16> : rows_of<Kind::bf16>;
    of(rows, dim, count, x, n, out, stride);
}

// Eight sums, as block_some has them: coordinate j joins the sum j % 8.
template <Kind K>
double dot_one(const char* row, int64_t dim, const double* x) {
    D sum[4] = {};
    const auto add = [&](F w, const double* y, int s) {
        sum[s] = fused(low_half(w), load(y), sum[s]);
        sum[s + 1] = fused(high_half(w), load(y + 2), sum[s + 1]);
    };
    int64_t j = 0;
    for (; j + 8 <= dim; j += 8) {
        add(load4<K>(row, j), x + j, 0);
        add(load4<K>(row, j + 4), x + j + 4, 2);
    }
    if (j < dim) {
        float w[8] = {};
        double y[8] = {};
        for (int64_t i = 0; j + i < dim; ++i) w[i] = one_float(row, K, j + i), y[i] = x[j + i];
        add(load(w), y, 0);
        add(load(w + 4), y + 4, 2);
    }
    return fold(sum);
}

template <Kind K>
void widen64(const void* row, int64_t dim, int64_t wide, double* out) {
    int64_t j = 0;
    for (; j + 4 <= dim; j += 4) {
        const F w = load4<K>(row, j);
        const D low = low_half(w), high = high_half(w);
        std::memcpy(out + j, &low, sizeof low);
        std::memcpy(out + j + 2, &high, sizeof high);
    }
    for (; j < wide; ++j) out[j] = j < dim ? static_cast<double>(one_float(row, K, j)) : 0.0;
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
    const int64_t bytes = dim * item_bytes(K);
    for (int64_t i = 0; i < n; ++i) {
        if (ids != nullptr && i + 2 < n) {  // the hardware does not foresee them
            const char* next = row_at<K>(weight, dim, ids[i + 2]);
            for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(next + b);
        }
        out[i] = dot_one<K>(row_at<K>(weight, dim, ids == nullptr ? i : ids[i]), dim, x);
    }
}

void dot_rows(const void* weight, Kind kind, int64_t dim, const int64_t* ids, int64_t n, const double* x, double* out) {
    const auto of = kind == Kind::f32 ? dot_all<Kind::f32> : kind == Kind::f16 ? dot_all<Kind::f16> : dot_all<Kind::bf16>;
    of(weight, dim, ids, n, x, out);
}

template <Kind K>
void floats_all(const void* weight, int64_t dim, const int32_t* ids, int64_t n, const float* x, float* out) {
    constexpr int kChains = 8;
    for (int64_t i = 0; i < n; ++i) {
        const char* row = row_at<K>(weight, dim, ids[i]);
        F sum[kChains] = {};
        int64_t j = 0;
        for (; j + 4 * kChains <= dim; j += 4 * kChains)
#pragma GCC unroll 8
            for (int s = 0; s < kChains; ++s) sum[s] = fused(load4<K>(row, j + 4 * s), load(x + j + 4 * s), sum[s]);
        float rest = 0;
        for (; j < dim; ++j) rest += one_float(row, K, j) * x[j];
        const F all = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
        out[i] = rest + sum_lanes(all);
    }
}

void dot_floats(const void* weight, Kind kind, int64_t dim, const int32_t* ids, int64_t n, const float* x, float* out) {
    const auto of = kind == Kind::f32 ? floats_all<Kind::f32> : kind == Kind::f16 ? floats_all<Kind::f16> : floats_all<Kind::bf16>;
    of(weight, dim, ids, n, x, out);
}
