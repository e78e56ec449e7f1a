// Rows as they are stored: their norms and reads.

inline float round_up(double x) {
    float f = static_cast<float>(x);
    return static_cast<double>(f) < x ? std::nextafterf(f, kInfinity) : f;
}

// ---- rows as they are stored: float32, float16, bfloat16 ----

template <Kind K>
double squares_of(const void* row, int64_t dim) {
    D sum[4] = {};
    int64_t j = 0;
    for (; j + 4 * kHalf <= dim; j += 4 * kHalf)
#pragma GCC unroll 4
        for (int s = 0; s < 4; ++s) {
            const D v = widened<K>(row, j + s * kHalf);
            sum[s] += v * v;
        }
    const D all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    double total = 0;
    for (int l = 0; l < kHalf; ++l) total += all[l];
    for (; j < dim; ++j) {
        const double v = one_float(row, K, j);
        total += v * v;
    }
    return total;
}

// Squares of float32 numbers do not overflow in float64: a sum that is not finite tells of an entry that is not.
float row_norm_of(const void* row, Kind kind, int64_t dim) {
    const auto squares = kind == Kind::f32 ? squares_of<Kind::f32> : kind == Kind::f16 ? squares_of<Kind::f16> : squares_of<Kind::bf16>;
    const double sum = squares(row, dim);
    return sum < __builtin_inf() ? round_up(std::sqrt(sum) * (1 + 1e-12)) : __builtin_nanf("");
}
