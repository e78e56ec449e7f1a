// What follows a scan, written once on the compiler's vector types and compiled for each instruction set:
// radii, interval sums of exponentials, survivors, Gumbel noise. Included inside the anonymous namespace of a
// translation unit that defines LANES (floats of one vector).
//
// Error bounds that executor/normaliser.cpp relies on: vexp is within 2^-21 relatively (clamped at exp(+-88)), link and beta add
// 2^-21 of their magnitude, kGumbelSlop covers the roundings of most_gumbel.

typedef float F __attribute__((vector_size(LANES * 4)));
typedef int32_t I __attribute__((vector_size(LANES * 4)));
typedef uint32_t U __attribute__((vector_size(LANES * 4)));

constexpr float kGumbelSlop = 1e-4f;
constexpr float kInfinity = __builtin_inff();

inline F load(const float* p) {
    F v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline F load(const Slack& slack, int64_t i) { return load(slack.values + i); }
inline void store(float* p, F v) { std::memcpy(p, &v, sizeof v); }
inline F splat(float x) { return F{} + x; }
inline I bits(F v) {
    I out;
    std::memcpy(&out, &v, sizeof v);
    return out;
}
inline F floats(I v) {
    F out;
    std::memcpy(&out, &v, sizeof v);
    return out;
}
inline F pick(I mask, F yes, F no) { return mask ? yes : no; }
#ifdef LARGER  // compilers make comparisons and blends of the general form
inline F vmax(F a, F b) { return LARGER(a, b); }
inline F vmin(F a, F b) { return SMALLER(a, b); }
#else
inline F vmax(F a, F b) { return a > b ? a : b; }
inline F vmin(F a, F b) { return a < b ? a : b; }
#endif
inline bool any(I mask) {
#ifdef ANY
    return ANY(mask);
#endif
    int32_t all = 0;
    for (int i = 0; i < LANES; ++i) all |= mask[i];
    return all != 0;
}

// exp for |x| <= 88, 0 below and exp(88) above; polynomial of the Cephes library's expf.
inline F vexp(F x) {
    F y = vmin(vmax(x, splat(-88.f)), splat(88.f));
    F shifted = y * 1.44269504f + 12582912.f;  // the integer sits in the low mantissa bits
    F n = shifted - 12582912.f;
    F r = (y - n * 0.693359375f) + n * 2.12194440e-4f;
    F p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.f;
    F out = floats(bits(p) + ((bits(shifted) - 0x4B400000) << 23));
    return pick(x < splat(-87.f), F{}, out);
}

// log for normal x > 0; polynomial of the Cephes library's logf.
inline F vlog(F x) {
    I raw = bits(x);
    I e = (raw >> 23) - 126;
    F m = floats((raw & 0x007FFFFF) | 0x3F000000);
    I small = m < splat(0.707106781f);
    m = pick(small, m + m, m) - 1.f;
    F n = __builtin_convertvector(e + small, F);  // a true lane is -1
    F z = m * m;
    F p = splat(7.0376836292e-2f);
    p = p * m - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    F y = p * m * z - n * 2.12194440e-4f - z * 0.5f;
    return m + y + n * 0.693359375f;
}

struct Pair {
    F first, second;
};

// table[2 at] and table[2 at + 1]: gathers cost by the element, and a pair is one.
inline Pair gather(const float* table, I at) {
    Pair out;
#ifdef GATHER_PAIRS
    GATHER_PAIRS(table, at, out);
#else
    for (int i = 0; i < LANES; ++i) {
        out.first[i] = table[2 * at[i]];
        out.second[i] = table[2 * at[i] + 1];
    }
#endif
    return out;
}

// Of a table, the cell of z, how far z is into it, and f and f' there. Clamped as floats, before they become integers: logits
// may be infinite.
struct Tabled {
    F value, slope, into;
    I cell;
};

inline Tabled tabled(const Link& link, F z) {
    F u = vmin(vmax((z - link.start) * link.inverse, splat(-1.f)), splat(link.cells)) + 1.f;
    I cell = __builtin_convertvector(u, I);
    F into = z - ((__builtin_convertvector(cell, F) - 1.f) * link.step + link.start);
    const Pair at = gather(link.table, cell);
    return {at.first + into * at.second, at.second, into, cell};
}

inline F vlink(const Link& link, F z) {
    if (link.form == LinkForm::affine) return z * link.a + link.b;
    if (link.form == LinkForm::table) return tabled(link, z).value;
    F u = z / link.a;
    F t = vexp(vmax(u, -u) * -2.f);
    F h = (1.f - t) / (1.f + t);
    // A class at -inf (padding, masked) is not there; a soft cap would bring it back at -cap.
    return pick(z == splat(-kInfinity), z, pick(u < F{}, -h, h) * link.a);
}

inline float sum_lanes(F v) {
    float s = 0;
    for (int i = 0; i < LANES; ++i) s += v[i];
    return s;
}

float radius_of(const Radius& r, int64_t first, int64_t n, float* out) {
    F most = F{};
    for (int64_t i = 0; i < n; i += LANES) {
        F sum = splat(r.constant);
        for (int t = 0; t < r.terms; ++t) sum += load(r.slack[t], first + i) * r.term[t];
        store(out + i, sum);
        most = vmax(sum, most);
    }
    float top = 0;
    for (int i = 0; i < LANES; ++i) top = most[i] > top ? most[i] : top;
    return top;
}

// Bytes as integers, lane by lane. Compilers take a __builtin_convertvector of bytes apart.
inline I widened(const uint8_t* bytes) {
    I out;
#ifdef WIDEN_BYTES
    auto wide = WIDEN_BYTES(bytes);
    std::memcpy(&out, &wide, sizeof out);
#else
    for (int i = 0; i < LANES; ++i) out[i] = bytes[i];
#endif
    return out;
}

// The largest of a pass in which `take` gives what an estimate counts for; n a multiple of 64. Four maxima side by side: each
// waits for its last comparison.
template <typename Take>
inline float largest_taken(const float* est, int64_t n, bool* finite, Take take) {
    constexpr int kSide = 4;
    F best[kSide] = {splat(-kInfinity), splat(-kInfinity), splat(-kInfinity), splat(-kInfinity)};
    I good = bits(F{}) == bits(F{});
    for (int64_t i = 0; i < n; i += kSide * LANES)
        for (int s = 0; s < kSide; ++s) {
            F v = load(est + i + s * LANES);
            good &= (v > splat(-1e30f)) & (v < splat(1e30f));  // beyond, float32 intervals would overflow
            best[s] = vmax(take(i + s * LANES, v), best[s]);
        }
    const F all = vmax(vmax(best[0], best[1]), vmax(best[2], best[3]));
    float top = -kInfinity;
    for (int i = 0; i < LANES; ++i) {
        top = all[i] > top ? all[i] : top;
        if (good[i] == 0) *finite = false;
    }
    return top;
}

float largest_of(const float* est, int64_t n, bool* finite) {
    return largest_taken(est, n, finite, [](int64_t, F v) { return v; });
}

float largest_there_of(float* est, const uint8_t* mask, int64_t n, bool* finite) {
    return largest_taken(est, n, finite, [=](int64_t i, F v) {
        const F taken = pick(widened(mask + i) != 0, v, splat(-kInfinity));
        store(est + i, taken);
        return taken;
    });
}

// 64 vectors at the most join one float sum: its rounding stays below 2^-18.
constexpr int64_t kPiece = 64 * LANES;

void two_exponentials(const float* est, const float* rad, int64_t n, Link link, float beta, float shift,
                      Kernels::Sums* sums) {
    for (int64_t start = 0; start < n; start += kPiece) {
        int64_t stop = start + kPiece < n ? start + kPiece : n;
        F lows = F{}, highs = F{}, all = F{}, moves = F{};
        I beyond = I{};
        for (int64_t i = start; i < stop; i += LANES) {
            F e = load(est + i), r = load(rad + i);
            F middle = vlink(link, e) * beta, lower, upper, term = vexp(middle - shift);
            if (link.form == LinkForm::table) lower = middle - r * (link.a * beta), upper = middle + r * (link.a * beta);
            else lower = vlink(link, e - r) * beta, upper = vlink(link, e + r) * beta;
            lows += vexp(lower - shift);
            highs += vexp(upper - shift);
            beyond |= upper - shift > splat(87.f);
            all += term;
            moves += pick(term > F{}, term * vmin(upper - middle, splat(88.f)), F{});
        }
        sums->low += sum_lanes(lows);
        sums->high += any(beyond) ? kInfinity : sum_lanes(highs);
        sums->centre += sum_lanes(all);
        sums->moved += sum_lanes(moves);
    }
}

// An affine link moves by r = slope * rad, so one exponential does: with S = sum e^est and M = sum e^est r,
// sum e^(est - r) >= S e^(-M / S) (Jensen) and sum e^(est + r) <= S + M (e^R - 1) / R, R the largest r (a chord).
// A table moves by no more than its steepest slope times rad: its ends are those, here and where rows leave the sums.
void interval_sums_of(const float* est, const float* rad, int64_t n, float most, Link link, float beta, float shift,
                      Kernels::Sums* sums) {
    const float slope = link.a * beta;
    if (link.form == LinkForm::softcap || !(most * slope < 40.f)) return two_exponentials(est, rad, n, link, beta, shift, sums);
    double sum = 0, moved = 0;
    for (int64_t start = 0; start < n; start += kPiece) {
        int64_t stop = start + kPiece < n ? start + kPiece : n;
        F all = F{}, moves = F{};
        for (int64_t i = start; i < stop; i += LANES) {
            F term = vexp(vlink(link, load(est + i)) * beta - shift);
            all += term;
            moves += term * load(rad + i);
        }
        sum += sum_lanes(all);
        moved += sum_lanes(moves);
    }
    if (!(sum > 0)) return;
    moved *= slope;
    const double top = static_cast<double>(most) * slope;
    sums->low += sum * std::exp(-moved / sum);
    sums->high += sum + moved * (top > 0 ? std::expm1(top) / top : 1.0);
    sums->centre += sum;
    sums->moved += moved;
}

// No term is further from the middle than its gap: the exponential is convex, so that upwards is farther than downwards,
// but where a soft cap or a table flattens out. A table's upper end is looked up, for gaps decide how many rows are read; its
// lower end, which cannot be more than a term away, goes by the steepest slope. `slop` of the upper end covers what float32
// makes of all this.
double gaps_of(const float* est, const float* rad, int64_t n, Link link, float beta, float shift, float slop, float* middle,
               float* gap) {
    double sum = 0;
    for (int64_t start = 0; start < n; start += kPiece) {
        const int64_t stop = start + kPiece < n ? start + kPiece : n;
        F all = F{};
        for (int64_t i = start; i < stop; i += LANES) {
            F e = load(est + i), r = load(rad + i), at = vlink(link, e) * beta, upper = at + r * (link.a * beta);
            if (link.form != LinkForm::affine) upper = vlink(link, e + r) * beta;
            F term = vexp(at - shift), high = vexp(upper - shift), wide = high - term;
            if (link.form != LinkForm::affine) {
                F lower = link.form == LinkForm::softcap ? vlink(link, e - r) * beta : at - r * (link.a * beta);
                wide = vmax(wide, term - vexp(lower - shift));
            }
            I there = e > splat(-kInfinity);
            term = pick(there, term, F{});
            all += term;
            store(middle + i, term);
            store(gap + i, pick(there, wide + high * slop, F{}));
        }
        sum += sum_lanes(all);
    }
    return sum;
}

// What each class adds to the sum that is to have a sign, and how much less it may add: see executor/nucleus.cpp.
double sides_of(const float* est, const float* rad, int64_t n, Link link, float beta, float shift, float slop,
                const Kernels::Boundary& at, float* middle, float* gap) {
    typedef float H __attribute__((vector_size(LANES * 2)));
    typedef double D __attribute__((vector_size(LANES * 4)));
    const float keep = at.keep, lose = 1 - at.keep;
    const F cap = splat(at.cap), more = splat(slop * at.cap);
    D sum = D{};
    for (int64_t start = 0; start < n; start += kPiece) {
        const int64_t stop = start + kPiece < n ? start + kPiece : n;
        gaps_of(est + start, rad + start, stop - start, link, beta, shift, slop, middle + start, gap + start);
        for (int64_t i = start; i < stop; i += LANES) {
            const F e = load(est + i), r = load(rad + i), m = load(middle + i), g = load(gap + i);
            const I better = e > splat(at.z), sure = (e - r > splat(at.above)) | (e + r < splat(at.below));
            F up, down;  // of a class that is better at its estimate, and of one that is worse
            if (at.inside) {
                up = g * lose;
                down = pick(sure, vmin(m, g) * keep, m * keep + (m + g) * lose);
            } else {
                up = pick(sure, vmin(m, g) * lose, m * lose + cap * keep);
                down = vmin(g, pick(sure, g, vmax(cap - m, F{}) + more)) * keep;
            }
            store(gap + i, pick(better, up, down));
            const F part = pick(better, m * -lose, m * keep);
            store(middle + i, part);
            H half[2];
            std::memcpy(half, &part, sizeof part);
            sum += __builtin_convertvector(half[0], D);
            sum += __builtin_convertvector(half[1], D);
        }
    }
    double total = 0;
    for (int i = 0; i < LANES / 2; ++i) total += sum[i];
    return total;
}

void interval_exps_of(const float* est, const float* rad, int64_t n, Link link, float beta, float shift, float* low,
                      float* high) {
    for (int64_t i = 0; i < n; i += LANES) {
        F e = load(est + i), r = load(rad + i);
        store(low + i, vexp(vlink(link, e - r) * beta - shift));
        store(high + i, vexp(vlink(link, e + r) * beta - shift));
    }
}

inline int64_t lower_above_of(const float* est, const float* rad, int64_t n, float floor, float* out) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i += LANES) {
        F low = load(est + i) - load(rad + i);
        I mask = low > splat(floor);
        if (!any(mask)) continue;
        for (int j = 0; j < LANES; ++j)
            if (mask[j]) out[count++] = low[j];
    }
    return count;
}

inline int64_t survivors_of(const float* est, const float* rad, int64_t n, float tau, int32_t first, int32_t* ids, float* kept,
                     float* upper) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i += LANES) {
        F e = load(est + i), high = e + load(rad + i);
        I mask = high >= splat(tau);
        if (!any(mask)) continue;
        for (int j = 0; j < LANES; ++j) {
            if (!mask[j]) continue;
            ids[count] = first + static_cast<int32_t>(i) + j;
            kept[count] = e[j];
            upper[count++] = high[j];
        }
    }
    return count;
}

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011), one counter for four neighbouring classes.
void noise_of(uint64_t seed, uint64_t row, uint32_t draw, int64_t first, int64_t n, uint32_t* out) {
    constexpr int kCounters = 2 * LANES;
    for (int64_t start = 0; start < n; start += 4 * kCounters) {
        uint64_t c0[kCounters], c1[kCounters], c2[kCounters], c3[kCounters];
        uint64_t group = static_cast<uint64_t>(first + start) >> 2;
        for (int i = 0; i < kCounters; ++i) {
            c0[i] = static_cast<uint32_t>(group + i);
            c1[i] = draw;
            c2[i] = static_cast<uint32_t>(row);
            c3[i] = row >> 32;
        }
        uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
        for (int round = 0; round < 10; ++round) {
            for (int i = 0; i < kCounters; ++i) {
                uint64_t p0 = (c0[i] & 0xFFFFFFFFu) * 0xD2511F53u, p1 = (c2[i] & 0xFFFFFFFFu) * 0xCD9E8D57u;
                c0[i] = (p1 >> 32) ^ (c1[i] & 0xFFFFFFFFu) ^ k0;
                c1[i] = p1 & 0xFFFFFFFFu;
                c2[i] = (p0 >> 32) ^ (c3[i] & 0xFFFFFFFFu) ^ k1;
                c3[i] = p0 & 0xFFFFFFFFu;
            }
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        int64_t left = n - start < 4 * kCounters ? (n - start) / 4 : kCounters;
        for (int64_t i = 0; i < left; ++i) {
            uint32_t* words = out + start + 4 * i;
            words[0] = static_cast<uint32_t>(c0[i]);
            words[1] = static_cast<uint32_t>(c1[i]);
            words[2] = static_cast<uint32_t>(c2[i]);
            words[3] = static_cast<uint32_t>(c3[i]);
        }
    }
}

// No less than the noise of any class whose high word this is. Its gap 1 - u is ~word / 2^32 or more, -log(u) is more than the first
// terms of its series in the gap, none of them negative, and a parabola through the powers of two, lowered a little, is below the
// logarithm of that: 0.01 too much for most classes, 0.2 for the tenth with the least noise.
inline F most_gumbel(U words) {
    F gap = __builtin_convertvector(~words, F) * 2.3283059e-10f;  // 2^-32, less 2^-22 of it for the conversion
    F p = gap * 0.16666667f + 0.2f;
    p = p * gap + 0.25f;
    p = p * gap + 0.33333334f;
    p = p * gap + 0.5f;
    F e = (p * gap + 1.f) * gap;
    I raw = bits(e);
    F m = floats((raw & 0x007FFFFF) | 0x3F800000);
    F log2 = __builtin_convertvector(raw, F) * 1.1920929e-7f + m * (1.f - m * 0.33333334f) - 127.6722f;
    return log2 * -0.69314718f;
}

float gumbel_keys_of(const float* est, const float* rad, const uint32_t* words, int64_t n, Link link, float beta, float* upper) {
    const float fixed = kGumbelSlop + link.slop * beta;
    F most = splat(-kInfinity);
    for (int64_t i = 0; i < n; i += LANES) {
        F e = load(est + i), f = vlink(link, e + load(rad + i)) * beta;
        U w;
        std::memcpy(&w, words + i, sizeof w);
        F key = f + (vmax(f, -f) * 4.8e-7f + fixed) + most_gumbel(w);
        const F there = pick(e > splat(-kInfinity), key, splat(-kInfinity));
        store(upper + i, there);
        most = vmax(there, most);
    }
    float top = -kInfinity;
    for (int i = 0; i < LANES; ++i) top = most[i] > top ? most[i] : top;
    return top;
}

#include "kernels/load_row.inl"

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

int64_t split_of(float* u, int64_t n, float edge, int32_t first, int32_t* ids, double* sums) {
    typedef float H __attribute__((vector_size(LANES * 2)));
    int64_t count = 0;
    for (int64_t start = 0; start < n; start += kRun) {
        D sum = D{};
        for (int64_t i = start; i < start + kRun; i += LANES) {
            F v = load(u + i);
            I heavy = v >= splat(edge);
            if (any(heavy)) {
                for (int j = 0; j < LANES; ++j)
                    if (heavy[j]) ids[count++] = first + static_cast<int32_t>(i) + j;
                v = pick(heavy, F{}, v);
                store(u + i, v);
            }
            H half[2];
            std::memcpy(half, &v, sizeof v);
            sum += __builtin_convertvector(half[0], D);
            sum += __builtin_convertvector(half[1], D);
        }
        sums[start / kRun] = fold(sum);
    }
    return count;
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

template <Kind K, int Q>
void rotate_some(const void* matrix, int64_t stride, int64_t dim, int64_t first, int64_t n, const double* x, int64_t x_stride,
                 double* out, int64_t out_stride) {
    constexpr int kParts = 16 / Q;
    int64_t i = 0;
    for (; i + kHalf * kParts <= n; i += kHalf * kParts) {
        D sum[Q][kParts] = {};
        for (int64_t j = 0; j < dim; ++j) {
            D column[kParts];
#pragma GCC unroll 16
            for (int s = 0; s < kParts; ++s) column[s] = widened<K>(matrix, j * stride + first + i + s * kHalf);
#pragma GCC unroll 16
            for (int q = 0; q < Q; ++q)
#pragma GCC unroll 16
                for (int s = 0; s < kParts; ++s) sum[q][s] = fused(column[s], x[q * x_stride + j] - D{}, sum[q][s]);
        }
        for (int q = 0; q < Q; ++q) std::memcpy(out + q * out_stride + i, sum[q], sizeof sum[q]);
    }
    for (; i < n; ++i)
        for (int q = 0; q < Q; ++q) {
            double sum = 0;
            for (int64_t j = 0; j < dim; ++j)
                sum += static_cast<double>(one_float(matrix, K, j * stride + first + i)) * x[q * x_stride + j];
            out[q * out_stride + i] = sum;
        }
}

template <Kind K>
void rotate_kind(const void* matrix, int64_t stride, int64_t dim, int64_t first, int64_t n, const double* x, int64_t x_stride,
                 int count, double* out, int64_t out_stride) {
    int q = 0;
    for (; q + 8 <= count; q += 8)
        rotate_some<K, 8>(matrix, stride, dim, first, n, x + q * x_stride, x_stride, out + q * out_stride, out_stride);
    if (count - q >= 4) {
        rotate_some<K, 4>(matrix, stride, dim, first, n, x + q * x_stride, x_stride, out + q * out_stride, out_stride);
        q += 4;
    }
    for (; q < count; ++q)
        rotate_some<K, 1>(matrix, stride, dim, first, n, x + q * x_stride, x_stride, out + q * out_stride, out_stride);
}

void rotate_of(const void* matrix, Kind kind, int64_t stride, int64_t dim, int64_t first, int64_t n, const double* x,
               int64_t x_stride, int count, double* out, int64_t out_stride) {
    const auto rotate = kind == Kind::f32 ? rotate_kind<Kind::f32> : rotate_kind<Kind::f16>;
    rotate(matrix, stride, dim, first, n, x, x_stride, count, out, out_stride);
}

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
