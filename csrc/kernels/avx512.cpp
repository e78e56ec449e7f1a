// AVX-512 with VNNI. Nothing here is shared with other translation units but the table of pointers.
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "kernels/cpu.h"
#include "kernels/kernels.h"

namespace headlong {
namespace {

#define LANES 16
#define LARGER(a, b) (F) _mm512_max_ps((__m512)(a), (__m512)(b))
#define SMALLER(a, b) (F) _mm512_min_ps((__m512)(a), (__m512)(b))
#define GATHER_PAIRS(table, at, out)                                                                                     \
    do {                                                                                                                 \
        const __m512i cells = (__m512i)(at);                                                                             \
        const __m512i low = _mm512_i32gather_epi64(_mm512_castsi512_si256(cells), table, 8);                             \
        const __m512i high = _mm512_i32gather_epi64(_mm512_extracti64x4_epi64(cells, 1), table, 8);                      \
        const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);               \
        (out).first = (F)_mm512_permutex2var_epi32(low, even, high);                                                     \
        (out).second = (F)_mm512_permutex2var_epi32(low, _mm512_add_epi32(even, _mm512_set1_epi32(1)), high);            \
    } while (false)
#define WIDEN_BYTES(p) _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))
#define WIDEN_HALVES(p) (D)_mm512_cvtps_pd(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))
#include "kernels/common/all.inl"

// ---- int8 codes: 64 classes side by side, four coordinates of each in one 32-bit lane ----

// _mm512_dpbusd_epi32 as an instruction: GCC 12 copies and spills the sums around the intrinsic.
inline void add_dots(__m512i& sum, __m512i codes, __m512i x) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(x));
}

constexpr int64_t kAhead = 4096;  // bytes

// N queries against M x 16 classes: 2 N M sums stay in registers, and the codes of a few classes in the first cache
// while all queries of the block pass over them.
template <int Bits, int N, int M>
void scan_some(const uint8_t* block, int64_t words, const int8_t* planes, const int32_t* offset, const float* step,
               const float* scale, const float* base, const float* add, float* est, int64_t stride) {
    __m512i high[N][M], low[N][M];
    #pragma GCC unroll 16
    for (int q = 0; q < N; ++q)
        #pragma GCC unroll 16
        for (int v = 0; v < M; ++v) high[q][v] = low[q][v] = _mm512_setzero_si512();
    constexpr int kGroups = 8 / Bits;
    const __m512i mask = _mm512_set1_epi8(static_cast<char>((1 << Bits) - 1));
    for (int64_t j = 0; j < words; ++j) {
        __m512i code[M];
        #pragma GCC unroll 16
        for (int v = 0; v < M; ++v) code[v] = _mm512_loadu_si512(block + j * 256 + v * 64);
        if (M == 4)  // read once, in order: the hardware stops at every page, this does not (and never faults)
            for (int v = 0; v < M; ++v) _mm_prefetch(reinterpret_cast<const char*>(block) + j * 256 + v * 64 + kAhead, _MM_HINT_T0);
        #pragma GCC unroll 8
        for (int g = 0; g < kGroups; ++g) {
            __m512i u[M];
            #pragma GCC unroll 16
            for (int v = 0; v < M; ++v)
                u[v] = Bits == 8 ? code[v] : _mm512_and_si512(_mm512_srli_epi32(code[v], g * Bits), mask);
            #pragma GCC unroll 16
            for (int q = 0; q < N; ++q) {
                int32_t x[2];
                std::memcpy(x, planes + ((q * words + j) * kGroups + g) * 8, 8);
                __m512i x0 = _mm512_set1_epi32(x[0]), x1 = _mm512_set1_epi32(x[1]);
                #pragma GCC unroll 16
                for (int v = 0; v < M; ++v) {
                    add_dots(high[q][v], u[v], x0);
                    add_dots(low[q][v], u[v], x1);
                }
            }
        }
    }
    #pragma GCC unroll 16
    for (int q = 0; q < N; ++q) {
        __m512i o0 = _mm512_set1_epi32(offset[2 * q]), o1 = _mm512_set1_epi32(offset[2 * q + 1]);
        #pragma GCC unroll 16
        for (int v = 0; v < M; ++v) {
            if (Bits < 8) high[q][v] = _mm512_slli_epi32(high[q][v], 1), low[q][v] = _mm512_slli_epi32(low[q][v], 1);
            __m512 a = _mm512_cvtepi32_ps(_mm512_sub_epi32(high[q][v], o0));
            __m512 b = _mm512_cvtepi32_ps(_mm512_sub_epi32(low[q][v], o1));
            __m512 dot = _mm512_fmadd_ps(a, _mm512_set1_ps(256.f), b);
            __m512 unit = _mm512_mul_ps(_mm512_loadu_ps(scale + 16 * v), _mm512_set1_ps(step[q]));
            float* to = est + q * stride + 16 * v;
            __m512 start = base == nullptr ? _mm512_loadu_ps(to)
                                           : _mm512_add_ps(_mm512_loadu_ps(base + 16 * v), _mm512_set1_ps(add[q]));
            _mm512_storeu_ps(to, _mm512_fmadd_ps(dot, unit, start));
        }
    }
}

template <int Bits>
void scan_bits(const uint8_t* block, int64_t words, const int8_t* planes, const int32_t* offset, const float* step,
               const float* scale, const float* base, const float* add, int n, float* est, int64_t stride) {
    switch (n) {
        case 2: return scan_some<Bits, 2, 4>(block, words, planes, offset, step, scale, base, add, est, stride);
        case 3:
            if (Bits == 8) return scan_some<Bits, 3, 4>(block, words, planes, offset, step, scale, base, add, est, stride);
            break;
        default: break;
    }
    for (int v = 0; v < 4; v += 2) {
        const uint8_t* half = block + 64 * v;
        const float *unit = scale + 16 * v, *from = base == nullptr ? nullptr : base + 16 * v;
        int q = 0;
        auto group = [&](auto some, int width) {
            some(half, words, planes + q * words * (64 / Bits), offset + 2 * q, step + q, unit, from, add + q,
                 est + q * stride + 16 * v, stride);
            q += width;
        };
        while (q + 6 <= n) group(scan_some<Bits, 6, 2>, 6);
        if (n - q >= 4) group(scan_some<Bits, 4, 2>, 4);
        if (n - q >= 2) group(scan_some<Bits, 2, 2>, 2);
        if (n - q == 1) group(scan_some<Bits, 1, 2>, 1);
    }
}

void scan_u8(const uint8_t* block, int64_t words, int bits, const int8_t* planes, const int32_t* offset,
             const float* step, const float* scale, const float* base, const float* add, int n, float* est,
             int64_t stride) {
    const auto scan = bits == 8 ? scan_bits<8> : bits == 4 ? scan_bits<4> : bits == 2 ? scan_bits<2> : scan_bits<1>;
    scan(block, words, planes, offset, step, scale, base, add, n, est, stride);
}

template <int Bits>
inline void add_strip(const uint8_t* block, const Strip& strip, const float* scale, __m512 (&est)[4]) {
    constexpr int kGroups = 8 / Bits;
    const __m512i mask = _mm512_set1_epi8(static_cast<char>((1 << Bits) - 1));
    __m512i high[4], low[4];
    #pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) high[v] = low[v] = _mm512_setzero_si512();
    for (int64_t j = 0; j < strip.words; ++j) {
        const uint8_t* at = block + j * 256;
        #pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) _mm_prefetch(reinterpret_cast<const char*>(at) + v * 64 + kAhead, _MM_HINT_T0);
        #pragma GCC unroll 8
        for (int g = 0; g < kGroups; ++g) {
            int32_t x[2];
            std::memcpy(x, strip.planes + (j * kGroups + g) * 8, 8);
            const __m512i x0 = _mm512_set1_epi32(x[0]), x1 = _mm512_set1_epi32(x[1]);
            #pragma GCC unroll 4
            for (int v = 0; v < 4; ++v) {
                const __m512i code = _mm512_loadu_si512(at + v * 64);
                const __m512i u = Bits == 8 ? code : _mm512_and_si512(_mm512_srli_epi32(code, g * Bits), mask);
                add_dots(high[v], u, x0);
                add_dots(low[v], u, x1);
            }
        }
    }
    const __m512i o0 = _mm512_set1_epi32(strip.offset[0]), o1 = _mm512_set1_epi32(strip.offset[1]);
    const __m512 step = _mm512_set1_ps(strip.step);
    #pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
        if (Bits < 8) high[v] = _mm512_slli_epi32(high[v], 1), low[v] = _mm512_slli_epi32(low[v], 1);
        const __m512 a = _mm512_cvtepi32_ps(_mm512_sub_epi32(high[v], o0)), b = _mm512_cvtepi32_ps(_mm512_sub_epi32(low[v], o1));
        const __m512 unit = _mm512_mul_ps(_mm512_loadu_ps(scale + 16 * v), step);
        est[v] = _mm512_fmadd_ps(_mm512_fmadd_ps(a, _mm512_set1_ps(256.f), b), unit, est[v]);
    }
}

void scan_one(const uint8_t* codes, int64_t words, int64_t first, int64_t blocks, const Strip* strips, int64_t count,
              const float* base, float add, float* est) {
    for (int64_t c = first; c < first + 64 * blocks; c += 64, est += 64) {
        const uint8_t* block = codes + c * words * 4;
        __m512 sum[4];
        #pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) sum[v] = _mm512_add_ps(_mm512_loadu_ps(base + c + 16 * v), _mm512_set1_ps(add));
        for (int64_t s = 0; s < count; ++s) {
            const uint8_t* at = block + strips[s].first_word * 256;
            const float* scale = strips[s].scale + c;
            switch (strips[s].bits) {
                case 8: add_strip<8>(at, strips[s], scale, sum); break;
                case 4: add_strip<4>(at, strips[s], scale, sum); break;
                case 2: add_strip<2>(at, strips[s], scale, sum); break;
                default: add_strip<1>(at, strips[s], scale, sum);
            }
        }
        #pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) _mm512_storeu_ps(est + 16 * v, sum[v]);
    }
}

template <int Bits>
void dot_bits(const uint8_t* codes, int64_t stride, const int32_t* ids, int64_t n, int64_t count, const int8_t* high,
              const int8_t* low, int32_t* dots) {
    constexpr int kTimes = Bits == 8 ? 1 : 2;
    const __m512i few = _mm512_set1_epi8(static_cast<char>((1 << Bits) - 1));
    for (int64_t j = 0; j < n; ++j) {
        if (j + 4 < n)
            for (int64_t i = 0; i < count; i += 64)
                _mm_prefetch(reinterpret_cast<const char*>(codes + ids[j + 4] * stride + i), _MM_HINT_T0);
        const uint8_t* row = codes + ids[j] * stride;
        __m512i a = _mm512_setzero_si512(), b = a;
        for (int64_t i = 0; i < count; i += 64) {
            const int64_t left = count - i;
            const __mmask64 mask = left >= 64 ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
            __m512i code = _mm512_maskz_loadu_epi8(mask, row + i);
            #pragma GCC unroll 8
            for (int g = 0; g < 8 / Bits; ++g) {
                const __m512i u = Bits == 8 ? code : _mm512_and_si512(_mm512_srli_epi32(code, g * Bits), few);
                add_dots(a, u, _mm512_maskz_loadu_epi8(mask, high + g * count + i));
                add_dots(b, u, _mm512_maskz_loadu_epi8(mask, low + g * count + i));
            }
        }
        dots[2 * j] = kTimes * _mm512_reduce_add_epi32(a);
        dots[2 * j + 1] = kTimes * _mm512_reduce_add_epi32(b);
    }
}

void dot_codes(const uint8_t* codes, int64_t stride, const int32_t* ids, int64_t n, int64_t count, int bits,
               const int8_t* high, const int8_t* low, int32_t* dots) {
    const auto dot = bits == 8 ? dot_bits<8> : bits == 4 ? dot_bits<4> : bits == 2 ? dot_bits<2> : dot_bits<1>;
    dot(codes, stride, ids, n, count, high, low, dots);
}

// ---- rows as they are stored ----

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
    return static_cast<const char*>(rows) + r * dim * (K == Kind::f32 ? 4 : 2);
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
            __m512 v = _mm512_loadu_ps(x + q * dim + j);
            #pragma GCC unroll 16
            for (int r = 0; r < R; ++r) sum[r][q] = _mm512_fmadd_ps(w[r], v, sum[r][q]);
        }
    }
    if (j < dim) {
        __mmask16 mask = static_cast<__mmask16>((1u << (dim - j)) - 1);
        #pragma GCC unroll 16
        for (int q = 0; q < N; ++q) {
            __m512 v = _mm512_maskz_loadu_ps(mask, x + q * dim + j);
            #pragma GCC unroll 16
            for (int r = 0; r < R; ++r) sum[r][q] = _mm512_fmadd_ps(load_tail<K>(row[r], j, mask), v, sum[r][q]);
        }
    }
    #pragma GCC unroll 16
    for (int q = 0; q < N; ++q)
        #pragma GCC unroll 16
        for (int r = 0; r < R; ++r) out[q * stride + r] = _mm512_reduce_add_ps(sum[r][q]);
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
        case 3: return rows_all<K, 6, 3>(rows, dim, count, x, out, stride);
        case 4: return rows_all<K, 5, 4>(rows, dim, count, x, out, stride);
        case 5: return rows_all<K, 4, 5>(rows, dim, count, x, out, stride);
        case 6: return rows_all<K, 3, 6>(rows, dim, count, x, out, stride);
        case 7: return rows_all<K, 3, 7>(rows, dim, count, x, out, stride);
        default: return rows_all<K, 3, 8>(rows, dim, count, x, out, stride);
    }
}

void dense_rows(const void* rows, Kind kind, int64_t dim, int64_t count, const float* x, int n, float* out,
                int64_t stride) {
    if (kind == Kind::f32) rows_of<Kind::f32>(rows, dim, count, x, n, out, stride);
    else if (kind == Kind::f16) rows_of<Kind::f16>(rows, dim, count, x, n, out, stride);
    else rows_of<Kind::bf16>(rows, dim, count, x, n, out, stride);
}

template <Kind K>
void widen(const void* rows, int64_t n, float* out) {
    int64_t j = 0;
    for (; j + 16 <= n; j += 16) _mm512_storeu_ps(out + j, load16<K>(rows, j));
    if (j < n) {
        __mmask16 mask = static_cast<__mmask16>((1u << (n - j)) - 1);
        _mm512_mask_storeu_ps(out + j, mask, load_tail<K>(rows, j, mask));
    }
}

template <int R, int N>
void tile_some(const float* rows, int64_t dim, const float* xt, float* out) {
    #pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
        #pragma GCC unroll 16
        for (int v = 0; v < N; ++v) _mm512_storeu_ps(out + (r * N + v) * 16, _mm512_setzero_ps());
    for (int64_t start = 0; start < dim; start += kTileChunk) {
        int64_t stop = start + kTileChunk < dim ? start + kTileChunk : dim;
        __m512 sum[R][N];
        #pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
            #pragma GCC unroll 16
            for (int v = 0; v < N; ++v) sum[r][v] = _mm512_setzero_ps();
        for (int64_t j = start; j < stop; ++j) {
            __m512 x[N];
            #pragma GCC unroll 16
            for (int v = 0; v < N; ++v) x[v] = _mm512_loadu_ps(xt + (j * N + v) * 16);
            #pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                __m512 w = _mm512_set1_ps(rows[r * dim + j]);
                #pragma GCC unroll 16
                for (int v = 0; v < N; ++v) sum[r][v] = _mm512_fmadd_ps(w, x[v], sum[r][v]);
            }
        }
        #pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
            #pragma GCC unroll 16
            for (int v = 0; v < N; ++v) {
                float* to = out + (r * N + v) * 16;
                _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), sum[r][v]));
            }
    }
}

template <int R, int N>
void tile_all(const float* rows, int64_t dim, int64_t count, const float* xt, float* out) {
    int64_t r = 0;
    for (; r + R <= count; r += R) tile_some<R, N>(rows + r * dim, dim, xt, out + r * N * 16);
    for (; r + 4 <= count; r += 4) tile_some<4, N>(rows + r * dim, dim, xt, out + r * N * 16);  // 64 = 10 x 6 + 4
    for (; r < count; ++r) tile_some<1, N>(rows + r * dim, dim, xt, out + r * N * 16);
}

void dense_tile(const void* rows, Kind kind, int64_t dim, int64_t count, const float* xt, int padded, float* scratch,
                float* out) {
    const float* wide = scratch;
    if (kind == Kind::f32) wide = static_cast<const float*>(rows);
    else if (kind == Kind::f16) widen<Kind::f16>(rows, count * dim, scratch);
    else widen<Kind::bf16>(rows, count * dim, scratch);
    switch (padded) {
        case 16: return tile_all<16, 1>(wide, dim, count, xt, out);
        case 32: return tile_all<12, 2>(wide, dim, count, xt, out);
        case 48: return tile_all<8, 3>(wide, dim, count, xt, out);
        default: return tile_all<6, 4>(wide, dim, count, xt, out);
    }
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
    const int64_t bytes = dim * (K == Kind::f32 ? 4 : 2);
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
    const int64_t bytes = dim * (K == Kind::f32 ? 4 : 2);
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

// ---- compressing, where the compiler's vector types have no word for it ----
//
// In registers: some processors take a hundred cycles to compress into memory. A whole vector is stored, never beyond the
// n that the output holds, because no more lanes came before than were read.

int64_t lower_above(const float* est, const float* rad, int64_t n, float floor, float* out) {
    int64_t count = 0;
    const __m512 least = _mm512_set1_ps(floor);
    for (int64_t i = 0; i < n; i += 16) {
        __m512 low = _mm512_sub_ps(_mm512_loadu_ps(est + i), _mm512_loadu_ps(rad + i));
        __mmask16 mask = _mm512_cmp_ps_mask(low, least, _CMP_GT_OQ);
        if (mask == 0) continue;
        _mm512_storeu_ps(out + count, _mm512_maskz_compress_ps(mask, low));
        count += __builtin_popcount(mask);
    }
    return count;
}

int64_t survivors(const float* est, const float* rad, int64_t n, float tau, int32_t first, int32_t* ids, float* kept,
                  float* upper) {
    int64_t count = 0;
    const __m512 least = _mm512_set1_ps(tau);
    const __m512i steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int64_t i = 0; i < n; i += 16) {
        __m512 e = _mm512_loadu_ps(est + i), high = _mm512_add_ps(e, _mm512_loadu_ps(rad + i));
        __mmask16 mask = _mm512_cmp_ps_mask(high, least, _CMP_GE_OQ);
        if (mask == 0) continue;
        __m512i id = _mm512_add_epi32(steps, _mm512_set1_epi32(first + static_cast<int32_t>(i)));
        _mm512_storeu_si512(ids + count, _mm512_maskz_compress_epi32(mask, id));
        _mm512_storeu_ps(kept + count, _mm512_maskz_compress_ps(mask, e));
        _mm512_storeu_ps(upper + count, _mm512_maskz_compress_ps(mask, high));
        count += __builtin_popcount(mask);
    }
    return count;
}

// ---- queries side by side ----

template <int L>
struct LaneOps;

template <>
struct LaneOps<16> {
    static constexpr bool centred = false;
    typedef float F __attribute__((vector_size(64)));
    typedef int32_t I __attribute__((vector_size(64)));
    using X = __m512i;
    static X take(const int8_t* from) { return _mm512_loadu_si512(from); }
    static I dots(I sum, uint32_t code, X x) {
        __m512i all = (__m512i)sum;
        add_dots(all, _mm512_set1_epi32(static_cast<int>(code)), x);
        return (I)all;
    }
    static F least(F a, F b) { return (F)_mm512_min_ps((__m512)a, (__m512)b); }
    static F most(F a, F b) { return (F)_mm512_max_ps((__m512)a, (__m512)b); }
    static uint32_t not_below(F a, F b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_NLT_UQ); }
    static uint32_t negative(F a) { return _mm512_cmp_ps_mask((__m512)a, _mm512_setzero_ps(), _CMP_LT_OQ); }
    static float sum(F a) { return _mm512_reduce_add_ps((__m512)a); }
    static F power(F y) {
        const __m512 x = _mm512_max_ps(_mm512_set1_ps(-100.f), (__m512)y);  // the second where one is no number
        const F f = (F)_mm512_reduce_ps(x, 0x09);                         // what is above the next whole number below
        const F p = ((f * 0.0780245587f + 0.226067454f) * f + 0.695833266f) * f + 0.999925256f;
        return (F)_mm512_scalef_ps((__m512)p, x);
    }
};

template <>
struct LaneOps<8> {
    static constexpr bool centred = false;
    typedef float F __attribute__((vector_size(32)));
    typedef int32_t I __attribute__((vector_size(32)));
    using X = __m256i;
    static X take(const int8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
    static I dots(I sum, uint32_t code, X x) {
        __m256i all = (__m256i)sum, u = _mm256_set1_epi32(static_cast<int>(code));
        __asm__("vpdpbusd %2, %1, %0" : "+v"(all) : "v"(u), "v"(x));
        return (I)all;
    }
    static F least(F a, F b) { return (F)_mm256_min_ps((__m256)a, (__m256)b); }
    static F most(F a, F b) { return (F)_mm256_max_ps((__m256)a, (__m256)b); }
    static uint32_t not_below(F a, F b) { return _mm256_cmp_ps_mask((__m256)a, (__m256)b, _CMP_NLT_UQ); }
    static uint32_t negative(F a) { return _mm256_cmp_ps_mask((__m256)a, _mm256_setzero_ps(), _CMP_LT_OQ); }
    static float sum(F a) {
        const __m128 half = _mm_add_ps(_mm256_castps256_ps128((__m256)a), _mm256_extractf128_ps((__m256)a, 1));
        const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
        return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
    }
    static F power(F y) {
        const __m256 x = _mm256_max_ps(_mm256_set1_ps(-100.f), (__m256)y);
        const F f = (F)_mm256_reduce_ps(x, 0x09);
        const F p = ((f * 0.0780245587f + 0.226067454f) * f + 0.695833266f) * f + 0.999925256f;
        return (F)_mm256_scalef_ps((__m256)p, x);
    }
};

#include "kernels/common/batch.inl"

void lanes_scan(const LaneRows& rows, const LanePass* passes, int count, const float* base, const float* add, int lanes, float* est) {
    switch (lanes) {
        case 8: return lanes_tiles<8, 16, 1>(rows, passes, count, base, add, lanes, 0, est);
        case 16: return lanes_tiles<16, 16, 1>(rows, passes, count, base, add, lanes, 0, est);
        case 32: return lanes_tiles<16, 8, 2>(rows, passes, count, base, add, lanes, 0, est);
        case 48: return lanes_tiles<16, 8, 3>(rows, passes, count, base, add, lanes, 0, est);
        default: return lanes_tiles<16, 6, 4>(rows, passes, count, base, add, lanes, 0, est);
    }
}

void lanes_weigh(const LaneLook& look, const LaneRadius& radius, const LaneRows& rows, const float* est, LaneState& state) {
    switch (look.lanes) {
        case 8: return lanes_weigh_some<8, 1>(look, radius, rows, est, state);
        case 16: return lanes_weigh_some<16, 1>(look, radius, rows, est, state);
        case 32: return lanes_weigh_some<16, 2>(look, radius, rows, est, state);
        case 48: return lanes_weigh_some<16, 3>(look, radius, rows, est, state);
        default: return lanes_weigh_some<16, 4>(look, radius, rows, est, state);
    }
}

void lanes_largest(const float* est, int64_t count, int lanes, float* out) {
    if (lanes == 8) lanes_largest_some<8>(est, count, lanes, out);
    else lanes_largest_some<16>(est, count, lanes, out);
}

void lanes_sums(const LaneLook& look, const float* est, int64_t count, int lanes, double* out) {
    if (lanes == 8) lanes_sums_some<8>(look, est, count, lanes, out);
    else lanes_sums_some<16>(look, est, count, lanes, out);
}

}  // namespace

const uint64_t avx512_features = compiled_features();

const Kernels* avx512_kernels() {
    static const Kernels table = {
        "avx512vnni", scan_u8, dense_rows, dense_tile, dot_rows, dot_floats, dot_block, sum_exps_of, rotate_of, widen_of,
        largest_double_of, dot_codes, radius_of, largest_of, largest_there_of, interval_sums_of, interval_exps_of,
        gaps_of, sides_of, split_of, lower_above, survivors, noise_of, gumbel_keys_of, encode_row_of, row_norm_of,
        link_lse_of, link_at_of, link_gradient_of, lanes_scan, lanes_weigh, lanes_largest, lanes_sums, read_of, scan_one};
    return &table;
}

}  // namespace headlong
