// The normaliser of one query, from the interval of every class.
//
// normaliser: exact terms where scored, intervals elsewhere. Where that is wider than asked for:
// refine  (normaliser/by_proof.cpp) reads on, widest terms first, until the sum of the gaps is small enough: proved;
// bet     (normaliser/by_bet.cpp) scores the heaviest rows and a sample of the rest.
#include <algorithm>
#include <numeric>

#include "executor/query_codes.h"
#include "executor/verbs.h"
#include "runtime/shared_work.h"

namespace headlong {
namespace {

constexpr double kSumError = 0x1p-16;  // relative: float sums and exponentials of a look

}  // namespace

// What float32 arithmetic may add to lse: link, temperature and shift of terms within 64 nats of the largest one.
double float_error(const Executor& e, double shift, double beta) {
    const double own = e.link.form == LinkForm::softcap ? e.link_a * beta * 0x1p-19 : e.link.form == LinkForm::table ? e.link.slop * beta + e.link_b : 0;
    return (std::fabs(shift) + 64) * (e.link.form == LinkForm::table ? 0x1p-21 : 0x1p-22) + own;
}

// What float64 accumulation may add to an exact logit, and the link to its exponent.
double dot_error(const Executor& e, const double* hidden) {
    const double square = square_sum(hidden, 0, e.dim);
    const double steepest = e.link.form == LinkForm::softcap ? 1 : std::max(e.link_a, 1.0), own = e.link.form == LinkForm::table ? e.link_b : 0;
    return static_cast<double>(e.dim + 8) * 0x1p-53 * (e.most_norm * std::sqrt(square) + 1) * steepest + own;
}

// The point is the sum at the estimates, which is closer than the middle of the interval, unless eps asks for the middle.
Interval normaliser(const Executor& e, const Look& look, int q, const Question& question, const std::vector<Scored>& scored,
                              const std::vector<float>& est, const std::vector<float>& upper) {
    const double beta = question.beta;
    const Masses& masses = look.masses[q];
    double shift = masses.shift;
    for (const Scored& s : scored) shift = std::max(shift, e.linked(s.z) * beta);
    if (shift == -kInf) return {-kInf, 0};
    double low = 0, high = 0, centre = 0, exact = 0;
    if (masses.shift > -kInf) {
        const double fade = std::exp(masses.shift - shift);
        low = masses.sums.low * fade;
        high = masses.sums.high * fade;
        centre = masses.sums.centre * fade;
    }
    const double slop = kSumError * high;
    low -= slop;
    high += slop;
    // What was scored leaves the sums. They hold its ends as float32 had them, up to `off` away in the exponent; an end
    // beyond exp(87) of its chunk made them infinite.
    const double off = float_error(e, shift, beta), less = std::exp(-off), more = std::exp(off);
    for (size_t i = 0; i < scored.size(); ++i) {
        const double rad = static_cast<double>(upper[i]) - est[i];
        const double f = e.linked(est[i]), wide = static_cast<double>(e.link.a) * rad;
        low -= std::exp((e.link.form == LinkForm::table ? f - wide : e.linked(est[i] - rad)) * beta - shift) * more;
        high -= std::exp((e.link.form == LinkForm::table ? f + wide : e.linked(est[i] + rad)) * beta - shift) * less;
        centre -= std::exp(f * beta - shift);
        exact += std::exp(e.linked(scored[i].z) * beta - shift);
    }
    low = exact + std::max(low, 0.0);
    high = exact + std::max(high, 0.0);
    centre += exact;
    double error = half_width(low, high) + off;
    // An interval that wide, or no number, says nothing. What was scored is left.
    if (!(error < 20)) {
        double most = -kInf, sum = 0;
        for (const Scored& s : scored) most = std::max(most, e.linked(s.z) * beta);
        for (const Scored& s : scored) sum += std::exp(e.linked(s.z) * beta - most);
        return {scored.empty() ? shift : most + std::log(sum), kInf};
    }
    const double bottom = std::log(low), top = std::log(high), spare = question.eps - off - 1e-9;
    double point = 0.5 * (bottom + top);
    if (centre > low && centre < high && error < question.eps)
        point = std::min(std::max(std::log(centre), top - spare), bottom + spare);
    error = std::max(top - point, point - bottom) + off;
    return {shift + point, error};
}

Scratch<float> radii(const Executor& e, const Look& look, int q, int threads) {
    Scratch<float> rad(e.padded);
    over_chunks((e.padded + kChunk - 1) / kChunk, threads, [&](int, int64_t c) {
        const int64_t first = c * kChunk, n = std::min<int64_t>(kChunk, e.padded - first);
        const float most = e.kernels->radius(look.prepared.radius[q], first, n, &rad[first]);
        // A class that is not there has no width: -inf plus an infinite radius would be no number.
        for (int64_t i = first; i < first + n && !(most < std::numeric_limits<float>::infinity()); ++i)
            if (look.est[q * e.padded + i] == -std::numeric_limits<float>::infinity()) rad[i] = 0;
    });
    return rad;
}

// The shift of all exponentials: that of the look, or of what was scored where that is larger. What was scored leaves the
// estimates; returns its sum.
double take_out(const Executor& e, Look& look, int q, const std::vector<Scored>& scored, double beta, float* shift) {
    *shift = static_cast<float>(look.masses[q].shift);
    for (const Scored& s : scored) *shift = std::max(*shift, static_cast<float>(e.linked(s.z) * beta));
    double exact = 0;
    for (const Scored& s : scored) {
        exact += std::exp(e.linked(s.z) * beta - *shift);
        look.est[q * e.padded + s.id] = -std::numeric_limits<float>::infinity();
    }
    return exact;
}

}  // namespace headlong
