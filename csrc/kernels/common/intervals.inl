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
