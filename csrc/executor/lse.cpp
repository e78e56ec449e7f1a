// The normaliser of one query, from the interval of every class.
//
// normaliser: exact terms where scored, intervals elsewhere. Where that is wider than asked for:
// refine  reads on, widest terms first, until the sum of the gaps is small enough: proved;
// bet     (executor/bet.cpp) scores the heaviest rows and a sample of the rest.
#include <algorithm>
#include <mutex>
#include <numeric>

#include "executor/histogram.h"

namespace headlong {
namespace {

constexpr double kSumError = 0x1p-16;  // relative: float sums and exponentials of a look
constexpr double kExpError = 0x1p-17;  // relative: exponentials of a look, summed in float64

constexpr double kFlat = 24;  // the mass of a sample that stands for all is spread over so many classes: (sum e)^2 / sum e^2
constexpr double kSpike = 5;   // ... and is so many times that of its likeliest class

double half_width(double low, double high) { return low > 0 ? 0.5 * std::log(high / low) : kInf; }

// Gaps of exponentials that may have been clamped are in the uppermost bins, which are always read.
const int kClamped = bin_of(1e37f);

// The bins from `bin` on hold `rows` classes, without which the gaps of the others are `part` of what may stay open at most;
// `exact` is known beside them.
struct Cut {
    int bin = kBins;
    double rows = 0, bearable = 0;
};

Cut widest(const Histogram& all, double exact, double aim, double part) {
    double low = exact, gap = 0;
    for (const Bin& bin : all) {
        low += bin.low;
        gap += bin.high - bin.low;
    }
    Cut cut;
    cut.bearable = part * (low * std::expm1(2 * aim) * (1 - 4 * kExpError) - 2 * kExpError * (low + gap));
    while (cut.bin > 1 && (gap > cut.bearable || cut.bin > kClamped)) {
        --cut.bin;
        gap -= all[cut.bin].high - all[cut.bin].low;
        cut.rows += all[cut.bin].count;
    }
    return cut;
}

}  // namespace

// What float32 arithmetic may add to lse: link, temperature and shift of terms within 64 nats of the largest one.
double float_error(const Executor& e, double shift, double beta) {
    const double own = e.link.form == 1 ? e.link_a * beta * 0x1p-19 : e.link.form == 2 ? e.link.slop * beta + e.link_b : 0;
    return (std::fabs(shift) + 64) * (e.link.form == 2 ? 0x1p-21 : 0x1p-22) + own;
}

// What float64 accumulation may add to an exact logit, and the link to its exponent.
double dot_error(const Executor& e, const double* hidden) {
    double square = 0;
    for (int64_t j = 0; j < e.dim; ++j) square += hidden[j] * hidden[j];
    const double steepest = e.link.form == 1 ? 1 : std::max(e.link_a, 1.0), own = e.link.form == 2 ? e.link_b : 0;
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
        low -= std::exp((e.link.form == 2 ? f - wide : e.linked(est[i] - rad)) * beta - shift) * more;
        high -= std::exp((e.link.form == 2 ? f + wide : e.linked(est[i] + rad)) * beta - shift) * less;
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

Scratch<float> radii(const Executor& e, const Look& look, int q, int threads, bool likely) {
    Scratch<float> rad(e.padded);
    over_chunks((e.padded + kChunk - 1) / kChunk, threads, [&](int, int64_t c) {
        const int64_t first = c * kChunk, n = std::min<int64_t>(kChunk, e.padded - first);
        const float most = e.kernels->radius(likely ? look.prepared.likely[q] : look.prepared.radius[q], first, n, &rad[first]);
        // A class that is not there has no width: -inf plus an infinite radius would be no number.
        for (int64_t i = first; i < first + n && !(most < std::numeric_limits<float>::infinity()); ++i)
            if (look.est[q * e.padded + i] == -std::numeric_limits<float>::infinity()) rad[i] = 0;
    });
    return rad;
}

// Brings the estimates and radii of `ids` to a deeper level.
void read_deeper(const Executor& e, Look& look, int q, int level, const std::vector<int32_t>& ids, int threads,
                           Scratch<float>& rad, Answer& answer) {
    float* est = look.est.data() + q * e.padded;
    constexpr int64_t kGrain = 256;
    const int64_t count = static_cast<int64_t>(ids.size());
    over_chunks((count + kGrain - 1) / kGrain, threads, [&](int, int64_t g) {
        const int32_t* some = &ids[g * kGrain];
        const int64_t n = std::min(kGrain, count - g * kGrain);
        float closer[kGrain], width[kGrain];
        for (int64_t i = 0; i < n; ++i) closer[i] = est[some[i]];
        look_deeper(e, look, q, level, some, n, closer, width);
        for (int64_t i = 0; i < n; ++i) {
            est[some[i]] = closer[i];
            rad[some[i]] = width[i];
        }
    });
    answer.bytes += static_cast<double>(count) * e.deeper[level].bytes;
}

// Whether refine would score so many rows that a dense pass is cheaper than they and the rest of the look. Guessed from the
// sample, and not where few of its classes carry its mass: those that it missed may then be all that matters.
Outlook refining(const Executor& e, const Look& look, int q, const Question& question) {
    if (!(question.eps < kInf) || question.delta > 0 || look.source != &e.preview || !e.deeper.empty()) return Outlook::narrow;
    const float beta = static_cast<float>(question.beta);
    const Masses sample = look.joined(q, look.sample_pieces);
    const float shift = static_cast<float>(sample.shift);
    const double aim = question.eps - float_error(e, shift, question.beta) - dot_error(e, &look.hidden[q * e.dim]);
    if (!(sample.sums.centre >= kSpike) || half_width(sample.sums.low, sample.sums.high) <= aim) return Outlook::narrow;

    // Classes that reach the k-th best of all are scored for their own sake.
    const int64_t size = look.sample_size;
    const double scale = static_cast<double>(e.padded) / static_cast<double>(size);
    Scratch<float> est(size);
    int64_t at = 0;
    for (size_t s = 0; s < look.sample; at += look.spans[s++].count)
        std::copy_n(look.estimates(q, s, at, e.padded), look.spans[s].count, &est[at]);
    float rival = std::numeric_limits<float>::infinity();
    if (question.k > 0) {
        const int64_t rank = std::min<int64_t>(size, 1 + static_cast<int64_t>(static_cast<double>(question.k) / scale));
        Scratch<float> order(size);
        std::copy_n(est.data(), size, order.data());
        std::nth_element(order.data(), order.data() + (rank - 1), order.data() + size, std::greater<float>());
        rival = order[rank - 1];
    }
    Histogram all(kBins);
    double exact = 0, sum = 0, squares = 0;
    at = 0;
    for (size_t s = 0; s < look.sample; at += look.spans[s++].count) {
        float rad[kChunk], low[kChunk], high[kChunk];
        const int64_t n = look.spans[s].count;
        e.kernels->radius(look.prepared.radius[q], look.spans[s].first, n, rad);
        e.kernels->interval_exps(&est[at], rad, n, e.link, beta, shift, low, high);
        for (int64_t i = 0; i < n; ++i) {
            const double middle = std::sqrt(static_cast<double>(low[i]) * high[i]);
            sum += middle;
            squares += middle * middle;
            if (est[at + i] + rad[i] >= rival) {
                exact += middle;
                continue;
            }
            Bin& bin = all[bin_of(high[i] - low[i])];
            bin.count += high[i] > 0;
            bin.low += low[i];
            bin.high += high[i];
        }
    }
    if (!(sum * sum >= kFlat * squares)) return Outlook::narrow;
    const Cut cut = widest(all, exact, aim, 1);
    const double look_saved = 1 - e.preview.bytes / e.dense.bytes;
    const bool dear = cut.bearable <= 0 || scale * cut.rows > look_saved * worth_scoring(e, look) * static_cast<double>(e.vocab);
    return dear ? Outlook::dear : Outlook::wide;
}

// Scored classes leave look.est, so that what it holds is the rest.
Status refine(const Executor& e, Look& look, int q, const Question& question, int threads, std::vector<Scored>& scored,
                        Interval& lse, Answer& answer) {
    float* est = look.est.data() + q * e.padded;
    const float none = -std::numeric_limits<float>::infinity(), beta = static_cast<float>(question.beta);
    float shift = static_cast<float>(look.masses[q].shift);
    for (const Scored& s : scored) shift = std::max(shift, static_cast<float>(e.linked(s.z) * question.beta));
    double exact = 0;
    for (const Scored& s : scored) {
        exact += std::exp(e.linked(s.z) * question.beta - shift);
        est[s.id] = none;
    }
    const int64_t chunks = (e.padded + kChunk - 1) / kChunk;
    const double fixed = float_error(e, shift, question.beta) + dot_error(e, &look.hidden[q * e.dim]);
    const double aim = question.eps - fixed, most = worth_scoring(e, look) * static_cast<double>(e.vocab);
    if (aim <= 0) return Status::dear;
    Scratch<float> rad = radii(e, look, q, threads);
    const auto ends_of = [&](int64_t c, float* low, float* high) {
        const int64_t n = std::min<int64_t>(kChunk, e.padded - c * kChunk);
        e.kernels->interval_exps(est + c * kChunk, &rad[c * kChunk], n, e.link, beta, shift, low, high);
        return n;
    };
    const int levels = look.source == &e.preview ? static_cast<int>(e.deeper.size()) : 0;
    for (int level = 0; level <= levels; ++level) {
        std::vector<Histogram> each(threads, Histogram(kBins));
        over_chunks(chunks, threads, [&](int t, int64_t c) {
            float low[kChunk], high[kChunk];
            const int64_t n = ends_of(c, low, high);
            for (int64_t i = 0; i < n; ++i) {
                Bin& bin = each[t][bin_of(high[i] - low[i])];
                bin.count += high[i] > 0;
                bin.low += low[i];
                bin.high += high[i];
            }
        });
        const Histogram all = sum_up(each);
        const bool last = level == levels;
        // Rows at their last codes are scored until the rest is narrow enough; before that, they are looked at more
        // closely until the rest takes half of what may stay open.
        const Cut cut = widest(all, exact, aim, last ? 1 : 0.5);
        if (cut.rows > (last ? most : 0.8 * static_cast<double>(e.vocab)) || cut.bearable <= 0) {
            if (last) return Status::dear;
            continue;
        }
        std::vector<int32_t> wanted;
        std::mutex joining;
        if (cut.rows > 0)
            over_chunks(chunks, threads, [&](int, int64_t c) {
                float lows[kChunk], highs[kChunk];
                std::vector<int32_t> own;
                const int64_t n = ends_of(c, lows, highs);
                for (int64_t i = 0; i < n; ++i)
                    if (bin_of(highs[i] - lows[i]) >= cut.bin) own.push_back(static_cast<int32_t>(c * kChunk + i));
                std::lock_guard<std::mutex> lock(joining);
                wanted.insert(wanted.end(), own.begin(), own.end());
            });
        if (!last) {
            read_deeper(e, look, q, level, wanted, threads, rad, answer);
            continue;
        }
        std::vector<Scored> rest;
        for (int32_t id : wanted) rest.push_back({id, 0});
        score(e, &look.hidden[q * e.dim], rest, threads);
        for (const Scored& s : rest) {
            exact += std::exp(e.linked(s.z) * question.beta - shift);
            est[s.id] = none;
            rad[s.id] = 0;
        }
        scored.insert(scored.end(), rest.begin(), rest.end());
        double bottom = exact, top = exact;
        for (int b = 0; b < cut.bin; ++b) {
            bottom += all[b].low * (1 - kExpError);
            top += all[b].high * (1 + kExpError);
        }
        if (out_of_range(exact, bottom)) return Status::dear;
        lse = {shift + 0.5 * (std::log(bottom) + std::log(top)), half_width(bottom, top) + fixed};
    }
    return lse.error <= question.eps ? Status::done : Status::dear;
}

}  // namespace headlong
