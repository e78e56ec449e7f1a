// Rows as they are stored: their codes, norms and reads.

// Inline, as the two below: a translation unit that has an instruction for it brings its own.
inline void dot_codes_of(const uint8_t* codes, int64_t stride, const int32_t* ids, int64_t n, int64_t count, int bits,
                         const int8_t* high, const int8_t* low, int32_t* dots) {
    const int mask = (1 << bits) - 1, times = bits == 8 ? 1 : 2;
    for (int64_t j = 0; j < n; ++j) {
        const uint8_t* row = codes + ids[j] * stride;
        int32_t a = 0, b = 0;
        for (int g = 0; g < 8 / bits; ++g)
            for (int64_t i = 0; i < count; ++i) {
                const int32_t code = row[i] >> g * bits & mask;
                a += code * high[g * count + i];
                b += code * low[g * count + i];
            }
        dots[2 * j] = times * a;
        dots[2 * j + 1] = times * b;
    }
}

inline float round_up(double x) {
    float f = static_cast<float>(x);
    return static_cast<double>(f) < x ? std::nextafterf(f, kInfinity) : f;
}

uint64_t read_of(const void* data, int64_t bytes) {
    const char* p = static_cast<const char*>(data);
    typedef uint64_t Q __attribute__((vector_size(LANES * 4)));
    Q a = Q{}, b = Q{}, c = Q{}, d = Q{};
    for (int64_t i = 0; i + 4 * static_cast<int64_t>(sizeof(Q)) <= bytes; i += 4 * sizeof(Q)) {
        Q v[4];
        std::memcpy(v, p + i, sizeof v);
        a ^= v[0], b ^= v[1], c ^= v[2], d ^= v[3];
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

// The whole vectors of a float32 row: what the loops below do, with sums in lanes. Returns how many entries that were.
int64_t encode_lanes(const float* row, int64_t dim, double step, double inverse, uint8_t* code, double* off, double* worst,
                     double* sum) {
    typedef double D __attribute__((vector_size(LANES * 8)));
    typedef int64_t L __attribute__((vector_size(LANES * 8)));
    typedef uint8_t B __attribute__((vector_size(LANES)));
    D offs = {}, most = {}, sums = {};
    int64_t j = 0;
    for (; j + LANES <= dim; j += LANES) {
        D v = __builtin_convertvector(load(row + j), D);
        D c = v * inverse;
        const L negative = c < 0;
        c += reinterpret_cast<D>((reinterpret_cast<L>(D{} - 0.5) & negative) | (reinterpret_cast<L>(D{} + 0.5) & ~negative));
        I whole = __builtin_convertvector(c, I);
        const I above = whole > 127, below = whole < -127;
        whole = (above & 127) | (below & -127) | (~(above | below) & whole);
        const B bytes = __builtin_convertvector(whole + 128, B);
        std::memcpy(code + j, &bytes, sizeof bytes);
        const D back = __builtin_convertvector(whole, D) * step;
        D gap = v - back;
        offs += gap * gap;
        gap = reinterpret_cast<D>(reinterpret_cast<L>(gap) & (L{} + INT64_MAX));
        const L more = gap > most;
        most = reinterpret_cast<D>((reinterpret_cast<L>(gap) & more) | (reinterpret_cast<L>(most) & ~more));
        sums += back * back;
    }
    for (int i = 0; i < LANES; ++i) {
        *off += offs[i];
        *sum += sums[i];
        *worst = most[i] > *worst ? most[i] : *worst;
    }
    return j;
}

float largest_of(const float* row, int64_t count) {
    F most = F{};
    for (int64_t j = 0; j + LANES <= count; j += LANES) {
        const F v = load(row + j);
        most = vmax(vmax(v, -v), most);
    }
    float out = 0;
    for (int i = 0; i < LANES; ++i) out = most[i] > out ? most[i] : out;
    return out;
}

void encode_row_of(const void* row, Kind kind, int64_t dim, uint8_t* code, float* scale, float* error, float* peak,
                   float* size) {
    const bool wide = kind == Kind::f32;
    const int64_t whole_lanes = wide ? dim / LANES * LANES : 0;
    float most = wide ? largest_of(static_cast<const float*>(row), dim) : 0;
    for (int64_t j = whole_lanes; j < dim; ++j) {
        float v = one_float(row, kind, j);
        v = v < 0 ? -v : v;
        most = v > most ? v : most;
    }
    float step = most / 127.f;
    if (step * 127.f < most) step = std::nextafterf(step, kInfinity);
    bool usable = step >= 1.1754944e-38f;  // a subnormal step would lose its relative precision: code zeros instead
    double inverse = usable ? 1.0 / step : 0.0, off = 0, worst = 0, sum = 0;
    int64_t start = 0;
    if (wide) start = encode_lanes(static_cast<const float*>(row), dim, step, inverse, code, &off, &worst, &sum);
    for (int64_t j = start; j < dim; ++j) {
        double v = one_float(row, kind, j);
        double c = v * inverse;
        c = static_cast<double>(static_cast<int>(c + (c < 0 ? -0.5 : 0.5)));
        c = c > 127 ? 127 : c < -127 ? -127 : c;
        code[j] = static_cast<uint8_t>(static_cast<int>(c) + 128);
        double back = c * step;
        double gap = v < back ? back - v : v - back;
        off += gap * gap;
        worst = gap > worst ? gap : worst;
        sum += back * back;
    }
    *scale = usable ? step : 0.f;
    if (!usable) sum = 0;
    *peak = round_up(worst);
    *error = round_up(std::sqrt(off) * (1 + 1e-12));
    *size = round_up(std::sqrt(sum) * (1 + 1e-12));
}
