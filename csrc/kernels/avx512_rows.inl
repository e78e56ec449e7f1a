// Rows as they are stored against queries in float32 and float64, in AVX-512. Included inside the anonymous namespace of
// kernels/avx512.cpp.

template <Kind K>
inline __m512 load16(const void* row, int64_t j) {
    if (K == Kind::f32) return _mm512_loadu_ps(static_cast<const float*>(row) + j);
    __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(static_cast<const uint16_t*>(row) + j));
    if (K == Kind::f16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

template <Kind K>
inline __m512 load_tail(const void* row, int64_t j, __mmask16 mask) {
    if (K == Kind::f32) return _mm512_maskz_loadu_ps(mask, static_cast<const float*>(row) + j);
    __m256i half = _mm256_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(row) + j);
    if (K == Kind::f16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

template <Kind K>
inline const char* row_at(const void* rows, int64_t dim, int64_t r) {
    return static_cast<const char*>(rows) + r * dim * item_bytes(K);
}

// The sums of the lanes of sixteen vectors. Each is added up in one order, whichever of them it is.
inline __m512 sums_of(const __m512 (&v)[16]) {
    __m512 half[8], quarter[4], two[2];
    #pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) half[i] = _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
    #pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const __m512d a = _mm512_castps_pd(half[2 * i]), b = _mm512_castps_pd(half[2 * i + 1]);
        quarter[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    #pragma GCC unroll 2
    for (int i = 0; i < 2; ++i)
        two[i] = _mm512_add_ps(_mm512_shuffle_f32x4(quarter[2 * i], quarter[2 * i + 1], 0x88), _mm512_shuffle_f32x4(quarter[2 * i], quarter[2 * i + 1], 0xDD));
    return _mm512_add_ps(_mm512_shuffle_f32x4(two[0], two[1], 0x88), _mm512_shuffle_f32x4(two[0], two[1], 0xDD));
}

template <Kind K, int R, int N>
void rows_some(const void* rows, int64_t dim, const float* x, float* out, int64_t stride) {
    __m512 sum[R][N];
    const char* row[R];
    #pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        row[r] = row_at<K>(rows, dim, r);
        #pragma GCC unroll 16
        for (int q = 0; q < N; ++q) sum[r][q] = _mm512_setzero_ps();
    }
    int64_t j = 0;
    for (; j + 16 <= dim; j += 16) {
        __m512 w[R];
        #pragma GCC unroll 16
        for (int r = 0; r < R; ++r) w[r] = load16<K>(row[r], j);
        #pragma GCC unroll 16
        for (int q = 0; q < N; ++q) {
            __m512 v = _mm512_load_ps(x + q * query_stride(dim) + j);
            #pragma GCC unroll 16
            for (int r = 0; r < R; ++r) sum[r][q] = _mm512_fmadd_ps(w[r], v, sum[r][q]);
        }
    }
    if (j < dim) {
        __mmask16 mask = static_cast<__mmask16>((1u << (dim - j)) - 1);
        #pragma GCC unroll 16
        for (int q = 0; q < N; ++q) {
            __m512 v = _mm512_load_ps(x + q * query_stride(dim) + j);
            #pragma GCC unroll 16
            for (int r = 0; r < R; ++r) sum[r][q] = _mm512_fmadd_ps(load_tail<K>(row[r], j, mask), v, sum[r][q]);
        }
    }
    // Row after row of one query, then of the next.
    static_assert(R * N <= 16);
    __m512 all[16];
    #pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) all[i] = i < R * N ? sum[i % R][i / R] : _mm512_setzero_ps();
    const __m512 sums = sums_of(all);
    #pragma GCC unroll 16
    for (int q = 0; q < N; ++q) _mm512_mask_storeu_ps(out + q * stride - q * R, static_cast<__mmask16>(((1u << R) - 1) << (q * R)), sums);
}

template <Kind K, int R, int N>
void rows_all(const void* rows, int64_t dim, int64_t count, const float* x, float* out, int64_t stride) {
    int64_t r = 0;
    for (; r + R <= count; r += R) rows_some<K, R, N>(row_at<K>(rows, dim, r), dim, x, out + r, stride);
    for (; r < count; ++r) rows_some<K, 1, N>(row_at<K>(rows, dim, r), dim, x, out + r, stride);
}

template <Kind K>
void rows_of(const void* rows, int64_t dim, int64_t count, const float* x, int n, float* out, int64_t stride) {
    switch (n) {
        case 1: return rows_all<K, 8, 1>(rows, dim, count, x, out, stride);
        case 2: return rows_all<K, 8, 2>(rows, dim, count, x, out, stride);
        case 3: return rows_all<K, 5, 3>(rows, dim, count, x, out, stride);
        case 4: return rows_all<K, 4, 4>(rows, dim, count, x, out, stride);
        case 5: return rows_all<K, 3, 5>(rows, dim, count, x, out, stride);
        case 6: return rows_all<K, 2, 6>(rows, dim, count, x, out, stride);
        case 7: return rows_all<K, 2, 7>(rows, dim, count, x, out, stride);
        default: return rows_all<K, 2, 8>(rows, dim, count, x, out, stride);
    }
}

void dense_rows(const void* rows, Kind kind, int64_t dim, int64_t count, const float* x, int n, float* out,
                int64_t stride) {
    if (kind == Kind::f32) rows_of<Kind::f32>(rows, dim, count, x, n, out, stride);
    else if (kind == Kind::f16) rows_of<Kind::f16>(rows, dim, count, x, n, out, stride);
    else rows_of<Kind::bf16>(rows, dim, count, x, n, out, stride);
}

template <Kind K>
double dot_one(const char* row, int64_t dim, const double* x) {
    __m512d a = _mm512_setzero_pd(), b = a, c = a, d = a;
    int64_t j = 0;
    for (; j + 32 <= dim; j += 32) {
        __m512 w0 = load16<K>(row, j), w1 = load16<K>(row, j + 16);
        a = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(w0)), _mm512_loadu_pd(x + j), a);
        b = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm512_extractf32x8_ps(w0, 1)), _mm512_loadu_pd(x + j + 8), b);
        c = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(w1)), _mm512_loadu_pd(x + j + 16), c);
        d = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm512_extractf32x8_ps(w1, 1)), _mm512_loadu_pd(x + j + 24), d);
    }
    for (bool second = false; j < dim; j += 16, second = true) {
        const int64_t left = dim - j < 16 ? dim - j : 16;
        const __mmask16 mask = static_cast<__mmask16>((1u << left) - 1);
        const __m512 w = load_tail<K>(row, j, mask);
        __m512d &near = second ? c : a, &far = second ? d : b;
        near = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(w)),
                               _mm512_maskz_loadu_pd(static_cast<__mmask8>(mask), x + j), near);
        far = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm512_extractf32x8_ps(w, 1)),
                              _mm512_maskz_loadu_pd(static_cast<__mmask8>(mask >> 8), x + j + 8), far);
    }
    D sum;
    const __m512d all = _mm512_add_pd(_mm512_add_pd(a, b), _mm512_add_pd(c, d));
    std::memcpy(&sum, &all, sizeof sum);
    return fold(sum);
}

// One row in float64, zeros up to `wide`.
template <Kind K>
void widen64(const void* row, int64_t dim, int64_t wide, double* out) {
    for (int64_t j = 0; j < wide; j += 16) {
        const int64_t left = dim - j;
        const __m512 w = left >= 16 ? load16<K>(row, j)
                                    : load_tail<K>(row, j, static_cast<__mmask16>(left > 0 ? (1u << left) - 1 : 0));
        _mm512_storeu_pd(out + j, _mm512_cvtps_pd(_mm512_castps512_ps256(w)));
        _mm512_storeu_pd(out + j + 8, _mm512_cvtps_pd(_mm512_extractf32x8_ps(w, 1)));
    }
}

void dot_block(const void* rows, Kind kind, int64_t dim, int64_t count, const double* x, int n, double* scratch, double* out,
               int64_t stride) {
    const int64_t wide = (dim + kWide - 1) / kWide * kWide;
    for (int64_t r = 0; r < count; ++r) {
        if (kind == Kind::f32) widen64<Kind::f32>(row_at<Kind::f32>(rows, dim, r), dim, wide, scratch + r * wide);
        else if (kind == Kind::f16) widen64<Kind::f16>(row_at<Kind::f16>(rows, dim, r), dim, wide, scratch + r * wide);
        else widen64<Kind::bf16>(row_at<Kind::bf16>(rows, dim, r), dim, wide, scratch + r * wide);
    }
    dot_block_wide(scratch, wide, count, x, n, out, stride);
}

template <Kind K>
void dot_all(const void* weight, int64_t dim, const int64_t* ids, int64_t n, const double* x, double* out) {
    constexpr int64_t kAhead = 4;  // rows fetched ahead of their use: gathered rows are not foreseen by the hardware
    const int64_t bytes = dim * item_bytes(K);
    for (int64_t i = 0; i < n; ++i) {
        if (ids != nullptr && i + kAhead < n) {
            const char* next = row_at<K>(weight, dim, ids[i + kAhead]);
            for (int64_t b = 0; b < bytes; b += 64) _mm_prefetch(next + b, _MM_HINT_T0);
        }
        out[i] = dot_one<K>(row_at<K>(weight, dim, ids == nullptr ? i : ids[i]), dim, x);
    }
}

void dot_rows(const void* weight, Kind kind, int64_t dim, const int64_t* ids, int64_t n, const double* x, double* out) {
    if (kind == Kind::f32) dot_all<Kind::f32>(weight, dim, ids, n, x, out);
    else if (kind == Kind::f16) dot_all<Kind::f16>(weight, dim, ids, n, x, out);
    else dot_all<Kind::bf16>(weight, dim, ids, n, x, out);
}

template <Kind K>
void floats_all(const void* weight, int64_t dim, const int32_t* ids, int64_t n, const float* x, float* out) {
    constexpr int64_t kAhead = 4;
    const int64_t bytes = dim * item_bytes(K);
    for (int64_t i = 0; i < n; ++i) {
        if (i + kAhead < n) {
            const char* next = row_at<K>(weight, dim, ids[i + kAhead]);
            for (int64_t b = 0; b < bytes; b += 64) _mm_prefetch(next + b, _MM_HINT_T0);
        }
        const char* row = row_at<K>(weight, dim, ids[i]);
        __m512 sum[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
        int64_t j = 0;
        for (; j + 64 <= dim; j += 64)
            #pragma GCC unroll 4
            for (int s = 0; s < 4; ++s) sum[s] = _mm512_fmadd_ps(load16<K>(row, j + 16 * s), _mm512_loadu_ps(x + j + 16 * s), sum[s]);
        for (int s = 0; j < dim; j += 16, ++s) {
            const __mmask16 mask = static_cast<__mmask16>(dim - j >= 16 ? 0xFFFF : (1u << (dim - j)) - 1);
            sum[s] = _mm512_fmadd_ps(load_tail<K>(row, j, mask), _mm512_maskz_loadu_ps(mask, x + j), sum[s]);
        }
        out[i] = _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3])));
    }
}

void dot_floats(const void* weight, Kind kind, int64_t dim, const int32_t* ids, int64_t n, const float* x, float* out) {
    if (kind == Kind::f32) floats_all<Kind::f32>(weight, dim, ids, n, x, out);
    else if (kind == Kind::f16) floats_all<Kind::f16>(weight, dim, ids, n, x, out);
    else floats_all<Kind::bf16>(weight, dim, ids, n, x, out);
}
