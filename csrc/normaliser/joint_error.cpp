// The normaliser proved from how far the estimates of all classes together can be off, which is far less than the sum of how far
// each of them can be. With q_i = exp(est_i) and z_i = est_i + a_i + b_i,
//
//     ‖a‖ <= A over all classes (plan.Term.together),   |b_i| <= β_i,   |a_i + b_i| <= r_i,   φ(r) = (e^r - 1 - r) / r²:
//     -F <= sum exp z_i - sum q_i <= F + G,   F = ‖q‖ A + sum q_i β_i,   G = max(q_i φ(r_i)) (A + ‖β‖)²
//
// holds for any set of classes: here for all whose upper end is below a cut. Of the others the widest are scored.
#include <algorithm>
#include <optional>

#include "executor/verbs.h"
#include "normaliser/histogram.h"
#include "runtime/shared_work.h"

namespace headlong {
namespace {

constexpr double kExpError = 0x1p-17;  // relative: exponentials of a look, summed in float64
constexpr double kMargin = 1 + 0x1p-9; // of F and G, for the float32 that they are made of
constexpr float kSlop = 0x1p-14f;      // relative: exponentials, and what they add up to in float32
constexpr double kPart = 0.85;         // of what may stay open goes to the classes below the cut
constexpr double kMostPart = 0.96;     // ... and no more than this, when all are counted
constexpr int64_t kGuessed = 4;         // chunks of classes that the first cut is guessed from
constexpr int kTries = 4;              // cuts: what some of the classes say may be too much
constexpr float kBelow = 0.5f;         // of the cut that is guessed, the first one: it is raised again by what is then known
constexpr float kLower = 0.35f;        // of a cut that was too high, the next one
constexpr double kRows = 0.5;          // of the rows that are worth scoring: above the cut

// What the bounds need of a set of classes.
struct Some {
    double count = 0, mass = 0, square = 0, other = 0, others = 0, worst = 0;

    void join(const Some& more, double times = 1) {
        count += times * more.count;
        mass += times * more.mass;
        square += times * more.square;
        other += times * more.other;
        others += times * more.others;
        worst = std::max(worst, more.worst);
    }
};

// How far the sum of exponentials can be from the mass, downwards and upwards.
struct Ends {
    double below, above;
};

Ends ends_of(const Some& some, double length) {
    const double first = (std::sqrt(some.square) * length + some.other) * kMargin + kSlop * some.mass, size = length + std::sqrt(some.others);
    return {std::min(first, some.mass), first + some.worst * size * size * kMargin};
}

// One query, whose exponents are z * slope + a constant.
struct Query {
    const Executor& e;
    const Look& look;
    const Radius &whole, &others;
    float beta, shift;
    double slope, length;  // A, in exponents
};

std::optional<Query> query_of(const Executor& e, const Look& look, int q, const Question& question, float shift) {
    if (look.source != &e.preview || look.prepared.apart.empty() || e.link.form != LinkForm::affine || !(e.link_a > 0)) return std::nullopt;
    const Apart& apart = look.prepared.apart[q];
    const double slope = e.link_a * question.beta;
    if (!(apart.length * slope < 64)) return std::nullopt;
    return Query{e, look, look.prepared.radius[q], apart.others, static_cast<float>(question.beta), shift, slope, apart.length * slope};
}

// The masses of n classes, at most a chunk, their upper ends, and their two radii, in exponents.
struct Chunk {
    float rad[kChunk], other[kChunk], mass[kChunk], high[kChunk];
};

void take(const Query& from, const float* est, int64_t first, int64_t n, Chunk& to) {
    const Kernels& kernels = *from.e.kernels;
    kernels.radius(from.whole, first, n, to.rad);
    kernels.radius(from.others, first, n, to.other);
    const float none = -std::numeric_limits<float>::infinity(), slope = static_cast<float>(from.slope * (1 + 0x1p-22));
    for (int64_t i = 0; i < n; ++i)  // a class that is not there has no width: -inf plus an infinite radius would be no number
        if (est[i] == none) to.rad[i] = to.other[i] = 0;
    kernels.gaps(est, to.rad, n, from.e.link, from.beta, from.shift, kSlop, to.mass, to.high);
    for (int64_t i = 0; i < n; ++i) to.high[i] += to.mass[i], to.rad[i] *= slope, to.other[i] *= slope;
}

// The mass times φ(r), as Kernels::below has it.
inline float bent(float mass, float high, float r) {
    if (r > 2) return (high - mass - mass * r) / (r * r);
    return mass * (0.5f + r * (1.f / 6 + r * (1.f / 24))) + r * r * r * (1.f / 120) * high;
}

// One class: where it has next to no mass, its upper end stands for it.
Some one_of(const Chunk& chunk, int64_t i) {
    const double q = chunk.mass[i], high = chunk.high[i], b = chunk.other[i];
    if (chunk.mass[i] < kLeastMass) return {1, 0, 0, high, 0, 0};
    return {1, q, q * q, q * b, b * b, bent(chunk.mass[i], chunk.high[i], chunk.rad[i])};
}

using Bins = std::vector<Some>;

Bins bins_of_some(const Query& from, const float* est, int64_t stride, int threads) {
    const int64_t padded = from.e.padded, chunks = (padded + kChunk - 1) / kChunk, some = (chunks + stride - 1) / stride;
    std::vector<Bins> each(threads, Bins(kBins));
    over_chunks(some, threads, [&](int t, int64_t c) {
        Chunk chunk;
        const int64_t first = c * stride * kChunk, n = std::min(kChunk, padded - first);
        take(from, est + first, first, n, chunk);
        for (int64_t i = 0; i < n; ++i)
            if (chunk.high[i] > 0) each[t][bin_of(chunk.high[i])].join(one_of(chunk, i));
    });
    Bins all(kBins);
    const double times = static_cast<double>(chunks) / static_cast<double>(some);
    for (const Bins& own : each)
        for (int b = 0; b < kBins; ++b)
            if (own[b].count > 0) all[b].join(own[b], times);
    return all;
}

struct Cut {
    int bin = 0;
    double rows = 0;  // above it
};

// The highest cut below which no more stays open than `aim` nats of all bear.
Cut highest_cut(const Bins& bins, double exact, double aim, double length, double part) {
    double mass = exact, count = 0;
    for (const Some& bin : bins) mass += bin.mass, count += bin.count;
    Some below;
    Cut cut;
    const int most = bin_of(1e30f);  // beyond it exponentials may have been clamped
    for (int b = 0; b < most; ++b) {
        below.join(bins[b]);
        const Ends ends = ends_of(below, length);
        if (ends.below + ends.above > part * (mass - ends.below) * std::expm1(2 * aim)) break;
        cut.bin = b + 1;
        count -= bins[b].count;
    }
    cut.rows = std::max(0.0, count);
    return cut;
}

// A class above a cut.
struct Above {
    int32_t id;
    float high;
    Some alone;
};

// The classes whose upper end is no less than `edge`, and all others together.
struct Split {
    std::vector<Above> above;
    Some below;
    double mass = 0;  // of all
};

Split split_at(const Query& from, const float* est, float edge, int threads) {
    const int64_t padded = from.e.padded, chunks = (padded + kChunk - 1) / kChunk;
    const float none[kChunk] = {};
    std::vector<std::vector<Above>> above(chunks);
    std::vector<Some> below(chunks);
    over_chunks(chunks, threads, [&](int, int64_t c) {
        Chunk chunk;
        const int64_t first = c * kChunk, n = std::min(kChunk, padded - first);
        take(from, est + first, first, n, chunk);
        Kernels::Below sums{0, 0, 0, 0, 0};
        from.e.kernels->below(chunk.mass, chunk.high, chunk.rad, chunk.other, n, edge, &sums);
        below[c] = {0, sums.mass, sums.square, sums.other, sums.others, sums.worst};
        int32_t ids[kChunk];
        float kept[kChunk], upper[kChunk];
        const int64_t came = from.e.kernels->survivors(chunk.high, none, n, edge, static_cast<int32_t>(first), ids, kept, upper);
        above[c].reserve(came);
        for (int64_t i = 0; i < came; ++i) above[c].push_back({ids[i], kept[i], one_of(chunk, ids[i] - first)});
    });
    Split split;
    for (int64_t c = 0; c < chunks; ++c) {
        split.below.join(below[c]);
        split.above.insert(split.above.end(), above[c].begin(), above[c].end());
    }
    split.mass = split.below.mass;
    for (const Above& one : split.above) split.mass += one.alone.mass;
    return split;
}

// Whether no more stays open below a cut than that part of what `all`, about the sum of all terms, bears.
bool bears(const Some& below, double all, double aim, double length, double part) {
    const Ends ends = ends_of(below, length);
    return ends.below + ends.above <= part * (all - ends.below) * std::expm1(2 * aim);
}

// Takes the lowest of the classes above the cut below it, as long as these bear it: the cut was guessed from a few classes.
void raise(Split& split, double exact, double aim, double length, double part) {
    std::vector<Some> bins(kBins);
    for (const Above& one : split.above) bins[bin_of(one.high)].join(one.alone);
    int bin = 0;
    for (const int most = bin_of(1e30f); bin < most; ++bin) {  // beyond it exponentials may have been clamped
        if (!(bins[bin].count > 0)) continue;
        Some more = split.below;
        more.join(bins[bin]);
        if (!bears(more, exact + split.mass, aim, length, part)) break;
        split.below = more;
    }
    const auto taken = [=](const Above& one) { return bin_of(one.high) < bin; };
    split.above.erase(std::remove_if(split.above.begin(), split.above.end(), taken), split.above.end());
}

// A class above the cut.
struct Wide {
    int32_t id;
    float low, high;
};

std::vector<Wide> intervals_of(const Query& from, const float* est, const std::vector<Above>& above, int threads) {
    const Executor& e = from.e;
    std::vector<Wide> wide(above.size());
    const int64_t count = static_cast<int64_t>(above.size()), grain = 64;
    over_chunks((count + grain - 1) / grain, threads, [&](int, int64_t g) {
        const int64_t n = std::min(grain, count - g * grain);
        int32_t some[grain];
        for (int64_t i = 0; i < n; ++i) some[i] = above[g * grain + i].id;
        float here[grain], rad[grain], low[grain], high[grain];
        std::fill_n(here, grain, -std::numeric_limits<float>::infinity());
        std::fill_n(rad, grain, 0.f);
        for (int64_t i = 0; i < n; ++i) here[i] = est[some[i]], rad[i] = from.whole.at(some[i]);
        e.kernels->interval_exps(here, rad, grain, e.link, from.beta, from.shift, low, high);
        for (int64_t i = 0; i < n; ++i) wide[g * grain + i] = {some[i], low[i], high[i]};
    });
    return wide;
}

// Brings those that are to be scored to the front, and returns how many; -1: no number of rows is enough.
int64_t rows_to_score(std::vector<Wide>& wide, double known, double open, double aim) {
    std::vector<double> gaps(kBins);
    double gap = 0, low = 0;
    for (const Wide& one : wide) {
        gaps[bin_of(one.high - one.low)] += static_cast<double>(one.high) - one.low;
        gap += static_cast<double>(one.high) - one.low;
        low += one.low;
    }
    const double bearable = (known + low) * std::expm1(2 * aim) * (1 - 4 * kExpError) - open - 2 * kExpError * (known + low + gap);
    if (!(bearable > 0)) return -1;
    int bin = kBins;
    for (const int clamped = bin_of(1e30f); bin > 1 && (gap > bearable || bin > clamped);) gap -= gaps[--bin];
    const float edge = edge_of(bin);
    return std::partition(wide.begin(), wide.end(), [=](const Wide& one) { return one.high - one.low >= edge; }) - wide.begin();
}

// Of eps, what roundings take.
double fixed_of(const Executor& e, const Look& look, int q, const Question& question, float shift) {
    return float_error(e, shift, question.beta) + dot_error(e, &look.hidden[q * e.dim]);
}

}  // namespace

// How many rows close_together would look at beyond the estimates, guessed from the sample; infinite where it cannot.
double rows_together(const Executor& e, const Look& look, int q, const Question& question) {
    const Masses sample = look.joined(q, look.sample_pieces);
    const std::optional<Query> from = query_of(e, look, q, question, static_cast<float>(sample.shift));
    if (!from) return kInf;
    Bins bins(kBins);
    const double times = static_cast<double>(e.padded) / static_cast<double>(look.sample_size);
    int64_t at = 0;
    for (size_t s = 0; s < look.sample; at += look.spans[s++].count) {
        Chunk chunk;
        take(*from, look.estimates(q, s, at, e.padded), look.spans[s].first, look.spans[s].count, chunk);
        for (int64_t i = 0; i < look.spans[s].count; ++i)
            if (chunk.high[i] > 0) bins[bin_of(chunk.high[i])].join(one_of(chunk, i), times);
    }
    const Cut cut = highest_cut(bins, 0, question.eps - fixed_of(e, look, q, question, from->shift), from->length, kPart);
    return cut.bin == 0 ? kInf : cut.rows;
}

// Nothing where it is not known how far estimates are off together, or where another way is thought to cost less.
std::optional<Status> close_together(const Executor& e, Look& look, int q, const Question& question, int threads, std::vector<Scored>& scored,
                                     Interval& lse, Answer& answer) {
    if (question.delta > 0 || !query_of(e, look, q, question, 0)) return std::nullopt;  // a bet costs less
    float shift;
    double exact = take_out(e, look, q, scored, question.beta, &shift);
    const Query from = *query_of(e, look, q, question, shift);
    const float* est = look.est.data() + q * e.padded;
    const double fixed = fixed_of(e, look, q, question, shift), aim = question.eps - fixed, most = worth_scoring(e, look) * static_cast<double>(e.vocab);
    if (aim <= 0) return std::nullopt;
    const double bearable = kRows * most;
    const Bins bins = bins_of_some(from, est, std::max<int64_t>(1, e.padded / kChunk / kGuessed), threads);
    const Cut cut = highest_cut(bins, exact, aim, from.length, kPart);
    if (cut.bin == 0 || cut.rows > bearable) return std::nullopt;

    float edge = edge_of(cut.bin) * kBelow;
    Split split;
    for (int tried = 0; tried < kTries; ++tried, edge *= kLower) {
        split = split_at(from, est, edge, threads);
        answer.passes += 0.5;  // of what another takes: one kernel adds up all that is needed
        if (bears(split.below, exact + split.mass, aim, from.length, kMostPart)) break;
    }
    raise(split, exact, aim, from.length, kPart);
    if (static_cast<double>(split.above.size()) > 1.5 * bearable + 64) return std::nullopt;
    const Ends ends = ends_of(split.below, from.length);
    std::vector<Wide> wide = intervals_of(from, est, split.above, threads);
    const double low = split.below.mass - ends.below, open = ends.below + ends.above;
    const int64_t rows = rows_to_score(wide, exact + low, open, aim);
    if (rows < 0 || static_cast<double>(rows) > most) return std::nullopt;

    std::vector<Scored> rest;
    for (int64_t i = 0; i < rows; ++i) rest.push_back({wide[i].id, 0});
    score(e, &look.hidden[q * e.dim], rest, threads);
    for (const Scored& s : rest) exact += std::exp(e.linked(s.z) * question.beta - shift);
    double bottom = low, top = low + open;
    for (size_t i = static_cast<size_t>(rows); i < wide.size(); ++i) bottom += wide[i].low, top += wide[i].high;
    bottom = exact + bottom * (1 - kExpError), top = exact + top * (1 + kExpError);
    scored.insert(scored.end(), rest.begin(), rest.end());
    if (out_of_range(exact, bottom)) return Status::finish_densely;
    lse = {shift + 0.5 * (std::log(bottom) + std::log(top)), half_width(bottom, top) + fixed};
    return lse.error <= question.eps ? Status::done : Status::finish_densely;
}

}  // namespace headlong
