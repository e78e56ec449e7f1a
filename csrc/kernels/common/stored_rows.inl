// Rows as they are stored: their codes, norms and reads.

#include "kernels/int8_step.inl"

inline float round_up(double x) {
    float f = static_cast<float>(x);
    return static_cast<double>(f) < x ? std::nextafterf(f, kInfinity) : f;
}

uint64_t read_of(const void* data, int64_t bytes) {
    const char* p = static_cast<const char*>(data);
    typedef uint64_t Q __attribute__((vector_size(LANES * 4)));
    Q a = Q{}, b = Q{}, c = Q{}, d = Q{};
    for (int64_t i = 0; i + 4 * static_cast<int64_t>(sizeof(Q)) <= bytes; i += 4 * sizeof(Q)) {
        const auto next = [&](int64_t place) {  // one vector: four at once would go through memory
            Q v;
            std::memcpy(&v, p + i + place * static_cast<int64_t>(sizeof(Q)), sizeof v);
            return v;
        };
        a ^= next(0), b ^= next(1), c ^= next(2), d ^= next(3);
    }
    a ^= b ^ c ^ d;
    uint64_t all = 0;
    for (int i = 0; i < LANES / 2; ++i) all ^= a[i];
    return all;
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

// The whole vectors of a row: what the loops of encode_row_of do with the entries behind them, with sums in lanes. Returns how many
// entries that were.
template <Kind K>
int64_t encode_lanes(const void* row, int64_t dim, double step, double inverse, uint8_t* code, double* off, double* worst, double* sum) {
    typedef int32_t W __attribute__((vector_size(LANES * 2)));
    typedef uint8_t B __attribute__((vector_size(LANES / 2)));
    const L sign = L{} + INT64_MIN;
    D offs = {}, most = {}, sums = {};
    int64_t j = 0;
    for (; j + kHalf <= dim; j += kHalf) {
        const D v = widened<K>(row, j);
        const D c = int8_codes<double>(v * inverse);
        const W whole = __builtin_convertvector(c, W);
        const B bytes = __builtin_convertvector(whole + 128, B);
        std::memcpy(code + j, &bytes, sizeof bytes);
        const D back = c * step;
        D gap = v - back;
        offs += gap * gap;
        gap = reinterpret_cast<D>(reinterpret_cast<L>(gap) & ~sign);
        most = gap > most ? gap : most;
        sums += back * back;
    }
    for (int i = 0; i < kHalf; ++i) {
        *off += offs[i];
        *sum += sums[i];
        *worst = most[i] > *worst ? most[i] : *worst;
    }
    return j;
}

// The largest size among the whole vectors of a row; `count`: how many entries those are.
template <Kind K>
double largest_lanes(const void* row, int64_t dim, int64_t* count) {
    const L sign = L{} + INT64_MIN;
    D most = {};
    int64_t j = 0;
    for (; j + kHalf <= dim; j += kHalf) {
        const D v = reinterpret_cast<D>(reinterpret_cast<L>(widened<K>(row, j)) & ~sign);
        most = v > most ? v : most;
    }
    double out = 0;
    for (int i = 0; i < kHalf; ++i) out = most[i] > out ? most[i] : out;
    *count = j;
    return out;
}

template <Kind K>
void encode_kind(const void* row, int64_t dim, uint8_t* code, float* scale, float* error, float* peak, float* size) {
    int64_t whole_lanes;
    float most = static_cast<float>(largest_lanes<K>(row, dim, &whole_lanes));
    for (int64_t j = whole_lanes; j < dim; ++j) {
        float v = one_float(row, K, j);
        v = v < 0 ? -v : v;
        most = v > most ? v : most;
    }
    const float step = int8_step(most);
    double inverse = step > 0 ? 1.0 / step : 0.0, off = 0, worst = 0, sum = 0;
    for (int64_t j = encode_lanes<K>(row, dim, step, inverse, code, &off, &worst, &sum); j < dim; ++j) {
        double v = one_float(row, K, j);
        double c = int8_codes<double>(v * inverse);
        code[j] = static_cast<uint8_t>(static_cast<int>(c) + 128);
        double back = c * step;
        double gap = v < back ? back - v : v - back;
        off += gap * gap;
        worst = gap > worst ? gap : worst;
        sum += back * back;
    }
    *scale = step;
    *peak = round_up(worst);
    *error = round_up(std::sqrt(off) * (1 + 1e-12));
    *size = round_up(std::sqrt(sum) * (1 + 1e-12));
}

void encode_row_of(const void* row, Kind kind, int64_t dim, uint8_t* code, float* scale, float* error, float* peak, float* size) {
    const auto encode = kind == Kind::f32 ? encode_kind<Kind::f32> : kind == Kind::f16 ? encode_kind<Kind::f16> : encode_kind<Kind::bf16>;
    encode(row, dim, code, scale, error, peak, size);
}
