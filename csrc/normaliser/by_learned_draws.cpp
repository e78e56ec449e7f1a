// The normaliser from as many rows as queries taught (over the query alone: by_bet.cpp), by what the look noted of each block of classes: only blocks on which a point
// falls, or that may have a wide class, are seen again class by class.
//
// A class has a middle b = exp(estimate) and a gap u, about b times what is typical of its radius. Gaps are lines, one for each chunk of
// the classes, on which points fall at a distance `step`; a class of gap u has step / u of its error counted for each:
//
//     sum of terms ~ exact + sum b + sum over the points of (term - b) * step / u,      step = aim * sum b / (spend * (r + 1))
//
// r = sum u / (aim * sum b), which the look has, so that the points are some spend * (r^2 + r). Classes whose gap is wide beside a step are
// looked at closer; then they are scored, or drawn with a chance of what is left of it over a step. (term - b) / u has a variance
// near one whatever the query, so one number serves them all: `spend` was bounded on queries that chose nothing else
// (previews/learned_draw_counts.py). Gaps decide what is read; however they are guessed, the estimate has no bias.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>

#include "executor/look_costs.h"
#include "executor/verbs.h"
#include "normaliser/by_learned_draws.h"
#include "normaliser/draw_points.h"
#include "normaliser/histogram.h"
#include "runtime/pool.h"
#include "runtime/trace.h"

namespace headlong {

static constexpr double kSums = 0x1p-16;  // relative: float sums of a look

namespace lines {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr double kWidest = 1e3;  // r beyond which nothing is drawn

// How much of a gap a deeper level leaves, by the classes that stand for all.
double left_by(const Executor& e, const Look& look, int q, size_t level) {
    const Radius& before = level == 0 ? look.prepared.radius[q] : look.prepared.deeper[q * e.deeper.size() + level - 1].radius;
    const Radius& after = look.prepared.deeper[q * e.deeper.size() + level].radius;
    double now = 0, then = 0;
    for (int64_t i = 0; i < 4; ++i) {  // each is a line of every array of slacks, from memory
        const int64_t id = e.vocab * i / 4;
        now += e.draws.narrow[level] * before.at(id);
        then += e.draws.narrow[level + 1] * after.at(id);
    }
    return now > 0 && then < now ? then / now : 1;
}

// A closer look at a class, in rows: its codes, and a part of a line of every array of scales and slacks.
double price_of(const Executor& e, size_t level) {
    constexpr double kPart = 16;
    const Deeper& closer = e.deeper[level];
    return (kCloser * static_cast<double>(closer.bytes) + kPart * static_cast<double>(closer.segments.size() + closer.terms.size())) / e.row_bytes();
}

// The least logit of the best ids beside which a spend was learned. A call for more of them scores classes whose gaps are counted as if they
// were drawn: with so little left that a few points do, one that falls on a wide error fails more often than was learned.
double least_taught(const std::vector<Scored>& scored, int64_t k) {
    if (k <= Draws::kTaught || static_cast<int64_t>(scored.size()) <= Draws::kTaught) return kNone;
    std::vector<double> z;
    for (const Scored& s : scored) z.push_back(s.z);
    std::nth_element(z.begin(), z.begin() + (Draws::kTaught - 1), z.end(), std::greater<>());
    return z[Draws::kTaught - 1];
}

// What the look's own sums say before any class is weighed: the step, and from which gap on a class is worth a row, or a closer look, which
// costs a part of one and leaves a part of the gap.
void guess(const Executor& e, const Look& look, int q, const std::vector<Scored>& scored, const Question& question, double shift, double spend, Line& line) {
    const double beta = question.beta, least = least_taught(scored, question.k);
    const Masses& masses = look.masses[q];
    const double fade = std::exp(masses.shift - shift);
    double known = masses.sums.centre * fade, gaps = masses.sums.moved * fade;
    for (const Scored& s : scored) {
        const double est = look.est[q * e.padded + s.id], rad = look.rad.empty() ? look.prepared.radius[q].at(s.id) : look.rad[s.id];
        const double mass = std::exp(e.linked(est) * beta - shift);
        known -= mass;
        if (s.z >= least) gaps -= mass * (e.linked(est + rad) - e.linked(est)) * beta;
    }
    known = line.known = line.exact + std::max(known, 0.0);
    const double found = e.draws.narrow[0] * gaps / (line.aim * known);
    double r = found < kWidest ? std::max(found, 0.0) : kWidest;
    const double worth = line.aim * known / (spend * (2 * r + 1));
    line.step = line.aim * known / (spend * (r + 1));
    for (size_t level = 0; level < e.deeper.size(); ++level) {
        const double left = left_by(e, look, q, level);
        line.edges.push_back(static_cast<float>(std::min(1e37, price_of(e, level) / (1 - left) * worth)));
        r *= left;
    }
    line.edges.push_back(static_cast<float>(worth));
    line.likely = spend * (r * r + r);
}

}  // namespace

Line start_line(const Executor& e, Look& look, int q, const Question& question, double spend, const std::vector<Scored>& scored) {
    Line line;
    const double* hidden = &look.hidden[q * e.dim];
    double shift = look.masses[q].shift;
    for (const Scored& s : scored) shift = std::max(shift, e.linked(s.z) * question.beta);
    shift = static_cast<float>(shift);  // as all terms have it
    const double fixed = kSums + float_error(e, shift, question.beta) + dot_error(e, hidden);
    line.lost = allow_float32(e, hidden, question, line.w);
    line.aim = question.eps - fixed - line.lost;
    for (const Scored& s : scored) line.exact += std::exp(e.linked(s.z) * question.beta - shift);
    guess(e, look, q, scored, question, shift, spend, line);
    line.exact = take_out(e, look, q, scored, question.beta, &line.w.shift);
    for (const Scored& s : scored)
        if (!look.gaps.empty()) look.gaps[s.id / kBlock] = std::numeric_limits<float>::quiet_NaN();  // the sum of its block has it
    if (look.rad.empty()) line.own.resize(e.padded);
    line.gap = look.rad.empty() ? line.own.data() : look.rad.data();
    line.closer.resize(chunks_of(e));
    line.weighed.resize(e.padded / kBlock), line.blocks.resize(e.padded / kBlock);
    return line;
}

namespace {

// The gaps of n classes, one by one, and their sums by blocks. Those that are worth a closer look, or a row, are taken out.
void weigh_each(const Executor& e, const Look& look, int q, double beta, int64_t first, int64_t n, double edge, Line& line, std::vector<Wide>& wide) {
    const float* est = look.est.data() + q * e.padded;
    float* gap = line.gap + first;
    if (look.rad.empty()) e.kernels->radius(look.prepared.radius[q], first, n, gap);
    const Kernels::Drawn by{e.link, static_cast<float>(beta), line.w.shift, narrowed_by(e, beta), static_cast<float>(edge)};
    int32_t ids[kChunk];
    float gaps[kChunk];
    int64_t count = 0;
    e.kernels->drawn(by, est + first, gap, n, static_cast<int32_t>(first), ids, gaps, &count, &line.blocks[first / kBlock]);
    std::fill_n(&line.weighed[first / kBlock], n / kBlock, uint8_t{1});
    for (int64_t i = 0; i < count; ++i) {
        wide.push_back({ids[i], est[ids[i]], gaps[i]});
        if (!e.deeper.empty()) prefetch_row(e.deeper[0].codes, e.deeper[0].bytes, ids[i]);
    }
}

}  // namespace

// The sums of the gaps of a chunk, block by block. The look knows them where it was told to; then only blocks that have enough for
// a class that is wide, or one that was scored, are weighed class by class.
void weigh_chunk(const Executor& e, const Look& look, int q, double beta, int64_t c, Line& line, std::vector<Wide>& wide) {
    const int64_t start = c * kChunk, stop = std::min(start + kChunk, e.padded);
    const double least = *std::min_element(line.edges.begin(), line.edges.end());
    if (look.gaps.empty()) return weigh_each(e, look, q, beta, start, stop - start, least, line, wide);
    double top = 0, fade = std::exp(-line.w.shift);
    for (int64_t first = start; first < stop; first += kBlock) {
        const int64_t b = first / kBlock;
        if (look.tops[b] != top) top = look.tops[b], fade = std::exp(top - line.w.shift);
        line.blocks[b] = look.gaps[b] * fade;
        if (!(line.blocks[b] < least)) weigh_each(e, look, q, beta, first, kBlock, least, line, wide);
    }
}

// Looks closer at those that a deeper level pays for.
void look_closer(const Executor& e, const Look& look, int q, double beta, Line& line, size_t level, std::vector<Wide>& wide, double* bytes) {
    constexpr int64_t kGrain = kBlock;
    std::vector<Wide*> some;
    for (Wide& one : wide)
        if (one.gap >= line.edges[level]) some.push_back(&one);
    const float zero[kGrain] = {};
    float before[kGrain], closer[kGrain], rad[kGrain] = {}, old[kGrain], middle[kGrain], gap[kGrain];
    int32_t ids[kGrain];
    for (size_t start = 0; start < some.size(); start += kGrain) {
        const auto n = static_cast<int64_t>(std::min<size_t>(kGrain, some.size() - start));
        std::fill_n(before, kGrain, kNone);
        for (int64_t i = 0; i < n; ++i) {
            ids[i] = some[start + i]->id;
            before[i] = some[start + i]->est;
        }
        std::copy_n(before, kGrain, closer);
        look_deeper(e, look, q, static_cast<int>(level), ids, n, closer, rad);
        for (int64_t i = 0; i < n; ++i) rad[i] *= static_cast<float>(e.draws.narrow[level + 1]);
        e.kernels->gaps(before, zero, kGrain, e.link, static_cast<float>(beta), line.w.shift, 0.f, old, gap);
        e.kernels->gaps(closer, rad, kGrain, e.link, static_cast<float>(beta), line.w.shift, 0.f, middle, gap);
        for (int64_t i = 0; i < n; ++i) {
            Wide& one = *some[start + i];
            one = {one.id, closer[i], gap[i]};
            line.closer[one.id / kChunk] += static_cast<double>(middle[i]) - old[i];
        }
    }
    *bytes += static_cast<double>(some.size()) * static_cast<double>(e.deeper[level].bytes);
}

// Numbers in [0, 1), by name.
static double uniform(uint64_t key, uint64_t name) { return static_cast<double>(mix(key + 0x9E3779B97F4A7C15u * (name + 1)) >> 11) * 0x1p-53; }

// The classes of a chunk on whose gaps points fall, one in each step of its line.
void draw_chunk(const Executor& e, const Look& look, int q, double beta, Line& line, int64_t c, uint64_t key, Rows& rows) {
    constexpr int64_t kColumns = 16;
    const float* est = look.est.data() + q * e.padded;
    std::vector<Wide> none;
    const int64_t stop = std::min((c + 1) * kChunk, e.padded);
    uint64_t count = 0;
    const auto next = [&] { return line.step * (static_cast<double>(count) + uniform(key, static_cast<uint64_t>(c) << 32 | count)); };
    double before = 0, point = next();
    for (int64_t first = c * kChunk; first < stop; first += kBlock) {
        const double after = before + line.blocks[first / kBlock];
        if (!(point < after)) {
            before = after;
            continue;
        }
        if (!line.weighed[first / kBlock]) weigh_each(e, look, q, beta, first, kBlock, kInf, line, none);
        const float* gap = line.gap + first;
        float columns[kColumns];
        for (int64_t j = 0; j < kColumns; ++j) columns[j] = (gap[j] + gap[j + kColumns]) + (gap[j + 2 * kColumns] + gap[j + 3 * kColumns]);
        for (Reached column{0, before}; (column = reached(columns, 1, kColumns, point, column)).i < kColumns; ++column.i) {
            Reached one = column;
            for (; (one = reached(gap, kColumns, kBlock, point, one)).i < kBlock; one.i += kColumns) {
                int times = 0;
                for (one.sum += gap[one.i]; point < one.sum; point = next()) ++times, ++count;
                rows.take(first + one.i, est[first + one.i], times * line.step / gap[one.i]);
            }
            column.sum = one.sum;
        }
        before = after;
    }
}

// Those that were taken out: scored, or drawn by themselves.
void draw_wide(const Line& line, const std::vector<Wide>& wide, uint64_t key, Rows& rows) {
    for (const Wide& one : wide) {
        const double chance = one.gap >= line.edges.back() ? 1 : one.gap / line.step;
        if (chance >= 1) rows.take(one.id, one.est, 1);
        else if (uniform(key, uint64_t{1} << 63 | static_cast<uint64_t>(one.id)) < chance) rows.take(one.id, one.est, 1 / chance);
    }
}

// What a line and the rows behind it say; none (NaN) where these are more than what makes a query better read densely.
double estimate(const Executor& e, const Look& look, const Line& line, const std::vector<Share>& all, const std::vector<double>& sums, Answer& answer) {
    int64_t rows = 0;
    for (const Share& one : all) rows += one.rows;
    answer.rows += rows;
    answer.bytes += static_cast<double>(rows) * e.row_bytes();
    const double known = line.known + std::accumulate(line.closer.begin(), line.closer.end(), 0.0);
    if (!(static_cast<double>(rows) < most_rows(e, look)) || out_of_range(line.exact, known)) return std::numeric_limits<double>::quiet_NaN();
    return line.w.shift + std::log(std::max(known + std::accumulate(sums.begin(), sums.end(), 0.0), line.exact));
}

}  // namespace lines

// What is typical of a radius, in an exponent.
float narrowed_by(const Executor& e, double beta) {
    const double slope = e.link.form == LinkForm::softcap ? 1.0 : e.link_a;
    return static_cast<float>(e.draws.narrow[0] * slope * beta);
}

// Whether queries taught what is asked: of all classes, and with the eps that they were asked with.
bool may_draw(const Executor& e, const Source& source, const Question& question) {
    if (!(e.draws.spend > 0) || !question.learned || &source != &e.preview || question.delta <= 0) return false;
    return question.eps == e.draws.eps && question.mask == nullptr && question.beta == 1;
}

// And whether float32 is close enough for this query.
bool learned(const Executor& e, const Look& look, int q, const Question& question) {
    if (!may_draw(e, *look.source, question)) return false;
    const double shift = look.masses[q].shift;
    return kSums + float_error(e, shift, question.beta) + dot_error(e, &look.hidden[q * e.dim]) < 0.5 * question.eps;
}

// Rows are asked for as soon as a point falls on their class: while they come, the next chunks are weighed.
Status draw(const Executor& e, Look& look, int q, const Question& question, int threads, std::vector<Scored>& scored, Interval& lse,
            Answer& answer) {
    using namespace lines;
    Line line = start_line(e, look, q, question, e.draws.spent_on(question.k), scored);
    if (!(line.likely < most_rows(e, look))) return Status::finish_densely;
    const double* hidden = &look.hidden[q * e.dim];
    const uint64_t key = key_of(hidden, e.dim, question.seed);
    std::vector<Share> all(threads);
    std::vector<double> sums(chunks_of(e));
    std::vector<std::atomic<bool>> taken(chunks_of(e));
    mark("draws: step");
    run_parallel(threads, [&](int t) {
        Share& own = all[t];
        Rows rows(e, hidden, question.beta, line.w, sums);
        const auto take = [&](int64_t c) {
            if (taken[c].exchange(true)) return;
            check_in();
            weigh_chunk(e, look, q, question.beta, c, line, own.wide);
            draw_chunk(e, look, q, question.beta, line, c, key, rows);
        };
        // What this thread has in its caches first, then what is left: a vocabulary in order of frequency has most draws in few chunks.
        for (size_t c = 0; c < look.takers.size(); ++c)
            if (look.takers[c] == t) take(static_cast<int64_t>(c));
        for (int64_t c = chunks_of(e); c-- > 0;) take(c);
        mark("draws: chunks");
        for (size_t level = 0; level < e.deeper.size(); ++level) look_closer(e, look, q, question.beta, line, level, own.wide, &own.bytes);
        draw_wide(line, own.wide, key, rows);
        rows.close();
        own.rows = rows.count();
    });
    for (const Share& one : all) answer.bytes += one.bytes;
    answer.passes += 1;
    lse = {estimate(e, look, line, all, sums, answer), question.eps};
    return std::isnan(lse.value) ? Status::finish_densely : Status::done;
}

}  // namespace headlong
