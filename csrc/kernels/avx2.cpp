// AVX2 with FMA and F16C.
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "kernels/cpu.h"
#include "kernels/kernels.h"

namespace headlong {
namespace {

inline float sum8(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

#define LANES 8
#define LARGER(a, b) (F) _mm256_max_ps((__m256)(a), (__m256)(b))
#define SMALLER(a, b) (F) _mm256_min_ps((__m256)(a), (__m256)(b))
#define ANY(mask) (_mm256_movemask_ps((__m256)(mask)) != 0)
#define PRODUCTS(a, b) (W) _mm256_mul_epu32((__m256i)(a), (__m256i)(b))
#define SUM(v) sum8((__m256)(v))
#define GATHER_PAIRS(table, at, out)                                                                                     \
    do {                                                                                                                 \
        const __m256i cells = (__m256i)(at);                                                                             \
        const long long* pairs = reinterpret_cast<const long long*>(table);                                              \
        const __m256 low = _mm256_castsi256_ps(_mm256_i32gather_epi64(pairs, _mm256_castsi256_si128(cells), 8));         \
        const __m256 high = _mm256_castsi256_ps(_mm256_i32gather_epi64(pairs, _mm256_extracti128_si256(cells, 1), 8));   \
        const __m256d first = _mm256_castps_pd(_mm256_shuffle_ps(low, high, 0x88));                                      \
        const __m256d second = _mm256_castps_pd(_mm256_shuffle_ps(low, high, 0xDD));                                     \
        (out).first = (F)_mm256_permute4x64_pd(first, 0xD8);                                                             \
        (out).second = (F)_mm256_permute4x64_pd(second, 0xD8);                                                           \
    } while (false)
#define WIDEN_BYTES(p) _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))
#define WIDEN_HALVES(p) (D)_mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))
#include "kernels/common/all.inl"

template <Kind K>
inline __m256 load8(const void* row, int64_t j) {
    if (K == Kind::f32) return _mm256_loadu_ps(static_cast<const float*>(row) + j);
    __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(static_cast<const uint16_t*>(row) + j));
    if (K == Kind::f16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

template <Kind K>
inline const char* row_at(const void* rows, int64_t dim, int64_t r) {
    return static_cast<const char*>(rows) + r * dim * item_bytes(K);
}

template <Kind K, int R, int N>
void rows_some(const void* rows, int64_t dim, const float* x, float* out, int64_t stride) {
    __m256 sum[R][N];
    const char* row[R];
    for (int r = 0; r < R; ++r) {
        row[r] = row_at<K>(rows, dim, r);
        for (int q = 0; q < N; ++q) sum[r][q] = _mm256_setzero_ps();
    }
    int64_t j = 0;
    for (; j + 8 <= dim; j += 8) {
        __m256 w[R];
        for (int r = 0; r < R; ++r) w[r] = load8<K>(row[r], j);
        for (int q = 0; q < N; ++q) {
            __m256 v = _mm256_loadu_ps(x + q * query_stride(dim) + j);
            for (int r = 0; r < R; ++r) sum[r][q] = _mm256_fmadd_ps(w[r], v, sum[r][q]);
        }
    }
    for (int q = 0; q < N; ++q)
        for (int r = 0; r < R; ++r) {
            float tail = 0;
            for (int64_t i = j; i < dim; ++i) tail += one_float(row[r], K, i) * x[q * query_stride(dim) + i];
            out[q * stride + r] = sum8(sum[r][q]) + tail;
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
    for (; n >= 4; n -= 4, x += 4 * query_stride(dim), out += 4 * stride) rows_all<K, 3, 4>(rows, dim, count, x, out, stride);
    if (n == 3) rows_all<K, 3, 3>(rows, dim, count, x, out, stride);
    else if (n == 2) rows_all<K, 4, 2>(rows, dim, count, x, out, stride);
    else if (n == 1) rows_all<K, 8, 1>(rows, dim, count, x, out, stride);
}

void dense_rows(const void* rows, Kind kind, int64_t dim, int64_t count, const float* x, int n, float* out,
                int64_t stride) {
    if (kind == Kind::f32) rows_of<Kind::f32>(rows, dim, count, x, n, out, stride);
    else if (kind == Kind::f16) rows_of<Kind::f16>(rows, dim, count, x, n, out, stride);
    else rows_of<Kind::bf16>(rows, dim, count, x, n, out, stride);
}

template <Kind K>
double dot_one(const char* row, int64_t dim, const double* x) {
    __m256d a = _mm256_setzero_pd(), b = a;
    int64_t j = 0;
    for (; j + 8 <= dim; j += 8) {
        __m256 w = load8<K>(row, j);
        a = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(w)), _mm256_loadu_pd(x + j), a);
        b = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm256_extractf128_ps(w, 1)), _mm256_loadu_pd(x + j + 4), b);
    }
    if (j < dim) {
        float w[8] = {};
        double y[8] = {};
        for (int64_t i = 0; j + i < dim; ++i) w[i] = one_float(row, K, j + i), y[i] = x[j + i];
        a = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm_loadu_ps(w)), _mm256_loadu_pd(y), a);
        b = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm_loadu_ps(w + 4)), _mm256_loadu_pd(y + 4), b);
    }
    D sum;
    const __m256d all = _mm256_add_pd(a, b);
    std::memcpy(&sum, &all, sizeof sum);
    return fold(sum);
}

template <Kind K>
void widen64(const void* row, int64_t dim, int64_t wide, double* out) {
    int64_t j = 0;
    for (; j + 8 <= dim; j += 8) {
        __m256 w = load8<K>(row, j);
        _mm256_storeu_pd(out + j, _mm256_cvtps_pd(_mm256_castps256_ps128(w)));
        _mm256_storeu_pd(out + j + 4, _mm256_cvtps_pd(_mm256_extractf128_ps(w, 1)));
    }
    for (; j < wide; ++j) out[j] = j < dim ? static_cast<double>(one_float(row, K, j)) : 0.0;
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
    const int64_t bytes = dim * item_bytes(K);
    for (int64_t i = 0; i < n; ++i) {
        if (ids != nullptr && i + 2 < n) {
            const char* next = row_at<K>(weight, dim, ids[i + 2]);
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
    for (int64_t i = 0; i < n; ++i) {
        const char* row = row_at<K>(weight, dim, ids[i]);
        __m256 sum[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
        int64_t j = 0;
        for (; j + 32 <= dim; j += 32)
            for (int s = 0; s < 4; ++s) sum[s] = _mm256_fmadd_ps(load8<K>(row, j + 8 * s), _mm256_loadu_ps(x + j + 8 * s), sum[s]);
        float all[8], rest = 0;
        _mm256_storeu_ps(all, _mm256_add_ps(_mm256_add_ps(sum[0], sum[1]), _mm256_add_ps(sum[2], sum[3])));
        for (; j < dim; ++j) rest += one_float(row, K, j) * x[j];
        for (int l = 0; l < 8; ++l) rest += all[l];
        out[i] = rest;
    }
}

void dot_floats(const void* weight, Kind kind, int64_t dim, const int32_t* ids, int64_t n, const float* x, float* out) {
    if (kind == Kind::f32) floats_all<Kind::f32>(weight, dim, ids, n, x, out);
    else if (kind == Kind::f16) floats_all<Kind::f16>(weight, dim, ids, n, x, out);
    else floats_all<Kind::bf16>(weight, dim, ids, n, x, out);
}

#include "kernels/common/table.inl"

}  // namespace

const uint64_t avx2_features = compiled_features();

const Kernels* avx2_kernels() {
    static constexpr Kernels table = table_of("avx2");
    return &table;
}

}  // namespace headlong
