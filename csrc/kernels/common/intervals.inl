// Sums and gaps of the exponentials of intervals.

// 64 vectors at the most join one float sum: its rounding stays below 2^-18.
constexpr int64_t kPiece = 64 * LANES;

void two_exponentials(const float* est, const float* rad, int64_t n, Link link, float beta, float shift,
                      Kernels::Sums* sums) {
    for (int64_t start = 0; start < n; start += kPiece) {
        int64_t stop = start + kPiece < n ? start + kPiece : n;
        F lows = F{}, highs = F{}, all = F{};
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
        }
        sums->low += sum_lanes(lows);
        sums->high += any(beyond) ? kInfinity : sum_lanes(highs);
        sums->centre += sum_lanes(all);
    }
}

// An affine link moves by r = slope * rad, so one exponential does: with S = sum e^est and M = sum e^est r,
// sum e^(est - r) >= S e^(-M / S) (Jensen) and sum e^(est + r) <= S + M (e^R - 1) / R, R the largest r (a chord).
// A table moves by no more than its steepest slope times rad: its ends are those, here and where rows leave the sums.
void one_exponential(const float* est, const float* rad, int64_t n, Link link, float beta, float shift, double* sum, double* moved) {
    for (int64_t start = 0; start < n; start += kPiece) {
        const int64_t stop = start + kPiece < n ? start + kPiece : n;
        F all = F{}, moves = F{};
        for (int64_t i = start; i < stop; i += LANES) {
            const F term = vexp(vlink(link, load(est + i)) * beta - shift);
            all += term;
            moves += term * load(rad + i);
        }
        *sum += sum_lanes(all);
        *moved += sum_lanes(moves);
    }
}

void interval_sums_of(const float* est, const float* rad, int64_t n, float most, Link link, float beta, float shift,
                      Kernels::Sums* sums) {
    const float slope = link.a * beta;
    if (link.form == LinkForm::softcap || !(most * slope < 40.f)) return two_exponentials(est, rad, n, link, beta, shift, sums);
    double sum = 0, moved = 0;
    one_exponential(est, rad, n, link, beta, shift, &sum, &moved);
    if (!(sum > 0)) return;
    moved *= slope;
    const double top = static_cast<double>(most) * slope;
    sums->low += sum * std::exp(-moved / sum);
    sums->high += sum + moved * (top > 0 ? std::expm1(top) / top : 1.0);
    sums->centre += sum;
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

// What each class adds to the sum that is to have a sign, and how much less it may add: see sampling/nucleus_from_intervals.cpp.
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
