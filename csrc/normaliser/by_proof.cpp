// The normaliser proved: the widest terms are read on until the sum of the gaps is small enough.
#include <algorithm>
#include <numeric>

#include "executor/look_costs.h"
#include "executor/verbs.h"
#include "normaliser/histogram.h"
#include "runtime/shared_work.h"

namespace headlong {
namespace {

constexpr double kExpError = 0x1p-17;  // relative: exponentials of a look, summed in float64

constexpr double kHopeful = 0.9;  // what of the room a guessed cut may take

constexpr double kFlat = 24;  // the mass of a sample that stands for all is spread over so many classes: (sum e)^2 / sum e^2
constexpr double kSpike = 5;   // ... and is so many times that of its likeliest class


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

// What refine goes on with: the intervals of all classes, and what is exact.
struct Refined {
    float* est;
    Scratch<float> rad;
    double full_beta;
    float beta, shift;
    double exact;
    float least;  // exponentials below are too little to matter all together, and they are those of most classes
};

int64_t ends_of(const Executor& e, const Refined& r, int64_t chunk, float* low, float* high) {
    const int64_t n = std::min<int64_t>(kChunk, e.padded - chunk * kChunk);
    e.kernels->interval_exps(r.est + chunk * kChunk, &r.rad[chunk * kChunk], n, e.link, r.beta, r.shift, low, high);
    return n;
}

// The gaps of every `stride`-th chunk, each standing for so many.
Histogram histogram_of(const Executor& e, const Refined& r, int64_t stride, int threads) {
    const int64_t chunks = (e.padded + kChunk - 1) / kChunk, some = (chunks + stride - 1) / stride;
    const double scale = static_cast<double>(chunks) / static_cast<double>(some);
    std::vector<Histogram> each(threads, Histogram(kBins));
    over_chunks(some, threads, [&](int t, int64_t c) {
        float low[kChunk], high[kChunk];
        const int64_t n = ends_of(e, r, c * stride, low, high);
        Bin small;  // in the lowest bin, which no cut takes
        for (int64_t i = 0; i < n; ++i) {
            if (high[i] < r.least) {
                small.count += high[i] > 0;
                small.low += low[i];
                small.high += high[i];
                continue;
            }
            Bin& bin = each[t][bin_of(high[i] - low[i])];
            bin.count += scale * (high[i] > 0);
            bin.low += scale * low[i];
            bin.high += scale * high[i];
        }
        each[t][0].count += scale * small.count;
        each[t][0].low += scale * small.low;
        each[t][0].high += scale * small.high;
    });
    return sum_up(each);
}

// Where to cut is guessed from an eighth of the classes; what comes of the cut is counted.
int64_t stride_of(const Executor& e) { return e.padded < 32 * kChunk ? 1 : 8; }
Histogram guessed(const Executor& e, const Refined& r, int threads) { return histogram_of(e, r, stride_of(e), threads); }

// The classes with gaps from `edge` on and the sum of their lower ends, and the sums of both ends of all others.
struct Split {
    std::vector<int32_t> ids;
    double ids_low = 0, low = 0, high = 0;
};

Split split_at(const Executor& e, const Refined& r, float edge, int threads) {
    constexpr int kLanes = 8;
    const float none[kChunk] = {};
    const int64_t chunks = (e.padded + kChunk - 1) / kChunk;
    std::vector<std::vector<int32_t>> wide(chunks);
    std::vector<double> lows(chunks), highs(chunks), all_lows(chunks);
    over_chunks(chunks, threads, [&](int, int64_t c) {
        float low[kChunk], high[kChunk], gap[kChunk], kept[kChunk], upper[kChunk];
        int32_t ids[kChunk];
        const int64_t n = ends_of(e, r, c, low, high);
        double bottom[kLanes] = {}, top[kLanes] = {}, all[kLanes] = {};
        for (int64_t i = 0; i < n; i += kLanes)
            for (int l = 0; l < kLanes; ++l) {
                gap[i + l] = high[i + l] - low[i + l];
                const bool narrow = gap[i + l] < edge;
                bottom[l] += narrow ? low[i + l] : 0.f;
                top[l] += narrow ? high[i + l] : 0.f;
                all[l] += low[i + l];
            }
        lows[c] = std::accumulate(bottom, bottom + kLanes, 0.0);
        highs[c] = std::accumulate(top, top + kLanes, 0.0);
        all_lows[c] = std::accumulate(all, all + kLanes, 0.0);
        wide[c].assign(ids, ids + e.kernels->survivors(gap, none, n, edge, static_cast<int32_t>(c * kChunk), ids, kept, upper));
    });
    Split split;
    for (const std::vector<int32_t>& some : wide) split.ids.insert(split.ids.end(), some.begin(), some.end());
    split.low = std::accumulate(lows.begin(), lows.end(), 0.0);
    split.high = std::accumulate(highs.begin(), highs.end(), 0.0);
    split.ids_low = std::max(0.0, std::accumulate(all_lows.begin(), all_lows.end(), 0.0) - split.low);
    return split;
}

// Whether what a split leaves open is at most `aim` once its classes are scored.
bool closed(const Refined& r, const Split& split, double aim) {
    const double scored = r.exact + split.ids_low * (1 - kExpError);
    return scored + split.high * (1 + kExpError) <= (scored + split.low * (1 - kExpError)) * std::exp(2 * aim);
}

// Scores the rows; false: the sums have lost what mattered.
bool score_the_rest(const Executor& e, const Look& look, int q, const Split& split, double fixed, int threads, Refined& r,
                    std::vector<Scored>& scored, Interval& lse) {
    std::vector<Scored> rest;
    for (int32_t id : split.ids) rest.push_back({id, 0});
    score(e, &look.hidden[q * e.dim], rest, threads);
    for (const Scored& s : rest) {
        r.exact += std::exp(e.linked(s.z) * r.full_beta - r.shift);
        r.est[s.id] = -std::numeric_limits<float>::infinity();
        r.rad[s.id] = 0;
    }
    scored.insert(scored.end(), rest.begin(), rest.end());
    const double bottom = r.exact + split.low * (1 - kExpError), top = r.exact + split.high * (1 + kExpError);
    if (out_of_range(r.exact, bottom)) return false;
    lse = {r.shift + 0.5 * (std::log(bottom) + std::log(top)), half_width(bottom, top) + fixed};
    return true;
}

}  // namespace

// Whether refine would score so many rows that a dense pass is cheaper than they and the rest of the look. Guessed from the
// sample, and not where few of its classes carry its mass: those that it missed may then be all that matters.
Outlook refining(const Executor& e, const Look& look, int q, const Question& question) {
    if (!(question.eps < kInf) || question.delta > 0 || look.source != &e.preview) return Outlook::narrow;
    const float beta = static_cast<float>(question.beta);
    const Masses sample = look.joined(q, look.sample_pieces);
    const float shift = static_cast<float>(sample.shift);
    const double aim = question.eps - float_error(e, shift, question.beta) - dot_error(e, &look.hidden[q * e.dim]);
    if (!(sample.sums.centre >= kSpike) || half_width(sample.sums.low, sample.sums.high) <= aim) return Outlook::narrow;

    if (rows_together(e, look, q, question) < 0.5 * worth_scoring(e, look) * static_cast<double>(e.vocab)) return Outlook::wide;
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
    const double look_saved = 1 - share_of_look(e);
    const bool finish_densely = cut.bearable <= 0 || scale * cut.rows > look_saved * worth_scoring(e, look) * static_cast<double>(e.vocab);
    return finish_densely ? Outlook::finish_densely : Outlook::wide;
}

// Scored classes leave look.est, so that what it holds is the rest.
Status refine(const Executor& e, Look& look, int q, const Question& question, int threads, std::vector<Scored>& scored,
                        Interval& lse, Answer& answer) {
    float shift;
    const double exact = take_out(e, look, q, scored, question.beta, &shift);
    const double fixed = float_error(e, shift, question.beta) + dot_error(e, &look.hidden[q * e.dim]);
    const double aim = question.eps - fixed, most = worth_scoring(e, look) * static_cast<double>(e.vocab);
    // A guess and a split may be more than a query's part of a dense pass.
    const double passes = 1 + 1.0 / static_cast<double>(stride_of(e)), dense = dense_cost(e, look.together);
    const bool densely = look.source == &e.preview && look.together > 1 && look_cost(e) < dense && kPass * passes > dense;
    if (aim <= 0 || densely) return Status::finish_densely;
    answer.passes += passes;
    Refined r{look.est.data() + q * e.padded, radii(e, look, q, threads), question.beta, static_cast<float>(question.beta), shift, exact,
              static_cast<float>(aim * exact / (64 * static_cast<double>(e.padded)))};
    // Rows are scored until the rest is narrow enough.
    const Cut cut = widest(guessed(e, r, threads), exact, aim, kHopeful);
    if (cut.rows > 2 * most + 4096 || cut.bearable <= 0) return Status::finish_densely;
    Split split = split_at(e, r, edge_of(cut.bin), threads);
    // A class that the guess did not see may have most of what is open: then all are counted, once.
    if (!closed(r, split, aim)) split = split_at(e, r, edge_of(widest(histogram_of(e, r, 1, threads), r.exact, aim, 1).bin), threads);
    if (static_cast<double>(split.ids.size()) > most) return Status::finish_densely;
    if (!score_the_rest(e, look, q, split, fixed, threads, r, scored, lse)) return Status::finish_densely;
    return lse.error <= question.eps ? Status::done : Status::finish_densely;
}

}  // namespace headlong
