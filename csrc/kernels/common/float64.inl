// Float64: rows against several queries, sums of exponentials, rotations.

#include "kernels/common/stored_entry.inl"

// ---- float64: rows against several queries, and sums of exponentials ----

typedef double D __attribute__((vector_size(LANES * 4)));
typedef int64_t L __attribute__((vector_size(LANES * 4)));
constexpr int kHalf = LANES / 2, kSums = LANES == 8 ? 2 : 4;

inline D load(const double* p) {
    D v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

// a * b + c: in one rounding where FUSED is that, or where a translation unit is compiled with contraction.
inline D fused(D a, D b, D c) {
#ifdef FUSED
    return FUSED(a, b, c);
#else
    return a * b + c;
#endif
}

// The sum of all lanes, halves onto halves.
inline double fold(D v) {
    double part[kHalf];
    std::memcpy(part, &v, sizeof v);
    for (int width = kHalf / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) part[i] += part[i + width];
    return part[0];
}
inline double fold(const D* sum) { return fold(kSums == 4 ? (sum[0] + sum[1]) + (sum[2] + sum[kSums - 1]) : sum[0] + sum[1]); }

template <int R, int N>
void block_some(const double* rows, int64_t wide, const double* x, double* out, int64_t stride) {
    D sum[R][N][kSums] = {};
    for (int64_t j = 0; j < wide; j += kSums * kHalf)
#pragma GCC unroll 4
        for (int s = 0; s < kSums; ++s) {
            D row[R];
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) row[r] = load(rows + r * wide + j + s * kHalf);
#pragma GCC unroll 4
            for (int q = 0; q < N; ++q) {
                D v = load(x + q * wide + j + s * kHalf);
#pragma GCC unroll 4
                for (int r = 0; r < R; ++r) sum[r][q][s] = fused(row[r], v, sum[r][q][s]);
            }
        }
    for (int q = 0; q < N; ++q)
        for (int r = 0; r < R; ++r) out[q * stride + r] = fold(sum[r][q]);
}

template <int R, int N>
void block_all(const double* rows, int64_t wide, int64_t count, const double* x, double* out, int64_t stride) {
    int64_t r = 0;
    for (; r + R <= count; r += R) block_some<R, N>(rows + r * wide, wide, x, out + r, stride);
    for (; r < count; ++r) block_some<1, N>(rows + r * wide, wide, x, out + r, stride);
}

// `rows` as widened to float64, with zeros beyond dim.
inline void dot_block_wide(const double* rows, int64_t wide, int64_t count, const double* x, int n, double* out, int64_t stride) {
    int q = 0;
    for (; q + 3 <= n; q += 3) block_all<2, 3>(rows, wide, count, x + q * wide, out + q * stride, stride);
    if (n - q == 2) block_all<3, 2>(rows, wide, count, x + q * wide, out + q * stride, stride);
    if (n - q == 1) block_all<4, 1>(rows, wide, count, x + q * wide, out + q * stride, stride);
}

// exp for x <= 0, its series to x^13 on |r| <= log(2) / 2.
inline D vexp64(D x) {
    const D low = D{} - 700.0;
    L off = x < low;
    D y;
    L chosen = (off & reinterpret_cast<L>(low)) | (~off & reinterpret_cast<L>(x));
    std::memcpy(&y, &chosen, sizeof y);
    D shifted = y * 1.4426950408889634 + 6755399441055744.0;  // the integer sits in the low mantissa bits
    D n = shifted - 6755399441055744.0;
    D r = (y - n * 6.93145751953125e-1) - n * 1.42860682030941723212e-6;
    D p = D{} + 1.6059043836821613e-10;
    p = p * r + 2.08767569878681e-9;
    p = p * r + 2.505210838544172e-8;
    p = p * r + 2.7557319223985893e-7;
    p = p * r + 2.7557319223985893e-6;
    p = p * r + 2.48015873015873e-5;
    p = p * r + 1.984126984126984e-4;
    p = p * r + 1.3888888888888889e-3;
    p = p * r + 8.333333333333333e-3;
    p = p * r + 4.1666666666666664e-2;
    p = p * r + 1.6666666666666666e-1;
    p = p * r + 0.5;
    p = p * r * r + r + 1.0;
    L out = reinterpret_cast<L>(p) + (reinterpret_cast<L>(shifted) << 52);
    out &= ~off;
    D value;
    std::memcpy(&value, &out, sizeof value);
    return value;
}

double sum_exps_of(const double* f, int64_t n, double shift) {
    D sum = D{};
    int64_t i = 0;
    for (; i + kHalf <= n; i += kHalf) sum += vexp64(load(f + i) - shift);
    if (i < n) {
        double last[kHalf];
        for (int64_t j = 0; j < kHalf; ++j) last[j] = i + j < n ? f[i + j] - shift : -1e9;
        sum += vexp64(load(last));
    }
    return fold(sum);
}

// Columns of a matrix as it is stored, half a vector of floats, in float64.
template <Kind K>
inline D widened(const void* matrix, int64_t at) {
#ifdef WIDEN_HALVES
    if (K == Kind::f16) return WIDEN_HALVES(static_cast<const uint16_t*>(matrix) + at);
#endif
    if (K == Kind::f32) {
        typedef float H __attribute__((vector_size(LANES * 2)));
        H half;
        std::memcpy(&half, static_cast<const float*>(matrix) + at, sizeof half);
        return __builtin_convertvector(half, D);
    }
    if (K == Kind::bf16) {
        typedef uint16_t B __attribute__((vector_size(LANES)));
        typedef uint32_t W __attribute__((vector_size(LANES * 2)));
        typedef float H __attribute__((vector_size(LANES * 2)));
        B halves;
        std::memcpy(&halves, static_cast<const uint16_t*>(matrix) + at, sizeof halves);
        const W words = __builtin_convertvector(halves, W) << 16;
        H floats;
        std::memcpy(&floats, &words, sizeof floats);
        return __builtin_convertvector(floats, D);
    }
    D out;
    for (int i = 0; i < kHalf; ++i) out[i] = one_float(matrix, K, at + i);
    return out;
}

// The size of each number, and where it is no finite one.
inline D sizes(D v, L& odd) {
    L raw;
    std::memcpy(&raw, &v, sizeof raw);
    raw &= INT64_MAX;
    odd |= raw >= INT64_C(0x7FF0000000000000);
    std::memcpy(&v, &raw, sizeof v);
    return v;
}
inline D larger(D a, D b) {
    const L mask = a > b;
    L x, y;
    std::memcpy(&x, &a, sizeof x);
    std::memcpy(&y, &b, sizeof y);
    x = (mask & x) | (~mask & y);
    std::memcpy(&a, &x, sizeof a);
    return a;
}

template <typename Take>
double widen_all(int64_t n, double* out, const Take& take) {
    D most[4] = {};
    L odd = L{};
    const auto step = [&](int64_t i, int s) {
        const D v = take(i);
        if (out != nullptr) std::memcpy(out + i, &v, sizeof v);
        most[s] = larger(sizes(v, odd), most[s]);
    };
    int64_t i = 0;
    for (; i + 4 * kHalf <= n; i += 4 * kHalf)
#pragma GCC unroll 4
        for (int s = 0; s < 4; ++s) step(i + s * kHalf, s);
    for (; i + kHalf <= n; i += kHalf) step(i, 0);
    const D all = larger(larger(most[0], most[1]), larger(most[2], most[3]));
    double largest = 0;
    for (int l = 0; l < kHalf; ++l) {
        largest = all[l] > largest ? all[l] : largest;
        if (odd[l]) largest = __builtin_inf();
    }
    return largest;
}

template <Kind K>
double widen_kind(const void* values, int64_t n, double* out) {
    double largest = widen_all(n, out, [&](int64_t i) { return widened<K>(values, i); });
    for (int64_t i = n / kHalf * kHalf; i < n; ++i) {
        const double v = one_float(values, K, i), size = v < 0 ? -v : v;
        out[i] = v;
        if (!(size <= largest)) largest = size < __builtin_inf() ? size : __builtin_inf();
    }
    return largest;
}

double widen_of(const void* values, Kind kind, int64_t n, double* out) {
    const auto widen = kind == Kind::f32 ? widen_kind<Kind::f32> : kind == Kind::f16 ? widen_kind<Kind::f16> : widen_kind<Kind::bf16>;
    return widen(values, n, out);
}

double largest_double_of(const double* values, int64_t n) {
    double largest = widen_all(n, nullptr, [&](int64_t i) { return load(values + i); });
    for (int64_t i = n / kHalf * kHalf; i < n; ++i) {
        const double size = values[i] < 0 ? -values[i] : values[i];
        if (!(size <= largest)) largest = size < __builtin_inf() ? size : __builtin_inf();
    }
    return largest;
}

// `P` vectors of columns from `at` on. Every column is summed in the order of the rows, however columns are grouped.
template <Kind K, int P>
void rotate_strip(const void* matrix, int64_t dim, int64_t n, int64_t at, const double* x, double* out) {
    D sum[P] = {};
    for (int64_t j = 0; j < dim; ++j)
#pragma GCC unroll 16
        for (int s = 0; s < P; ++s) sum[s] = fused(widened<K>(matrix, j * n + at + s * kHalf), x[j] - D{}, sum[s]);
    std::memcpy(out + at, sum, sizeof sum);
}

template <Kind K>
void rotate_kind(const void* matrix, int64_t dim, int64_t n, const double* x, double* out) {
    constexpr int kMany = 16, kSome = 4;
    int64_t i = 0;
    for (; i + kMany * kHalf <= n; i += kMany * kHalf) rotate_strip<K, kMany>(matrix, dim, n, i, x, out);
    for (; i + kSome * kHalf <= n; i += kSome * kHalf) rotate_strip<K, kSome>(matrix, dim, n, i, x, out);
    // The last vector takes some columns once more.
    for (; i < n && n >= kHalf; i += kHalf) rotate_strip<K, 1>(matrix, dim, n, i = i + kHalf <= n ? i : n - kHalf, x, out);
    for (; i < n; ++i) {
        out[i] = 0;
        for (int64_t j = 0; j < dim; ++j) out[i] += static_cast<double>(one_float(matrix, K, j * n + i)) * x[j];
    }
}

void rotate_of(const void* matrix, Kind kind, int64_t dim, int64_t n, const double* x, double* out) {
    const auto rotate = kind == Kind::f32 ? rotate_kind<Kind::f32> : rotate_kind<Kind::f16>;
    rotate(matrix, dim, n, x, out);
}
