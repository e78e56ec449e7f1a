// The normaliser from as many rows as queries taught, by what the look noted of each block of classes: only blocks on which a point
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
// (previews/draws.py). Gaps decide what is read; however they are guessed, the estimate has no bias.
#include <atomic>
#include <cmath>
#include <limits>

#include "normaliser/betting.h"
#include "normaliser/histogram.h"
#include "runtime/prefetch.h"
#include "runtime/trace.h"

namespace headlong {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr double kWidest = 1e3;  // r beyond which nothing is drawn
constexpr double kSums = 0x1p-16;  // relative: float sums of a look

// A class with a wide gap, or with what a closer look left of it.
struct Wide {
    int32_t id;
    float est, gap;
};

// What one query's draws go by. Gaps take the place of radii, which nobody wants behind them.
struct Line {
    Weighed w;  // its shift, and the hidden vector in float32 where that will do
    Scratch<float> own;
    float* gap = nullptr;
    Scratch<double> blocks;       // sums of the gaps of each kBlock classes
    std::vector<uint8_t> weighed;  // whether the gaps of these are there, one by one
    std::vector<double> closer;   // what closer looks added to the middles, chunk by chunk
    std::vector<float> edges;     // gaps from which each deeper level pays, and from which a class is scored
    double exact = 0, known = 0;  // terms of what was scored; and the middles of all others
    double aim = 0, step = 0;
    double likely = 0;            // rows that are read
};

int64_t chunks_of(const Executor& e) { return (e.padded + kChunk - 1) / kChunk; }

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

// What the look's own sums say before any class is weighed: the step, and from which gap on a class is worth a row, or a closer look, which
// costs a part of one and leaves a part of the gap.
void guess(const Executor& e, const Look& look, int q, const std::vector<Scored>& scored, double beta, double shift, const Draws& draws, Line& line) {
    const Masses& masses = look.masses[q];
    const double fade = std::exp(masses.shift - shift);
    double known = masses.sums.centre * fade, gaps = masses.sums.moved * fade;
    for (const Scored& s : scored) {
        const double est = look.est[q * e.padded + s.id], rad = look.rad.empty() ? look.prepared.radius[q].at(s.id) : look.rad[s.id];
        const double mass = std::exp(e.linked(est) * beta - shift);
        known -= mass;
        gaps -= mass * (e.linked(est + rad) - e.linked(est)) * beta;
    }
    known = line.known = line.exact + std::max(known, 0.0);
    const double found = draws.narrow[0] * gaps / (line.aim * known);
    double r = found < kWidest ? std::max(found, 0.0) : kWidest;
    const double worth = line.aim * known / (draws.spend * (2 * r + 1));
    line.step = line.aim * known / (draws.spend * (r + 1));
    for (size_t level = 0; level < e.deeper.size(); ++level) {
        const double left = left_by(e, look, q, level);
        line.edges.push_back(static_cast<float>(std::min(1e37, price_of(e, level) / (1 - left) * worth)));
        r *= left;
    }
    line.edges.push_back(static_cast<float>(worth));
    line.likely = draws.spend * (r * r + r);
}

Line start_line(const Executor& e, Look& look, int q, const Question& question, const Draws& draws, const std::vector<Scored>& scored) {
    Line line;
    const double* hidden = &look.hidden[q * e.dim];
    double shift = look.masses[q].shift;
    for (const Scored& s : scored) shift = std::max(shift, e.linked(s.z) * question.beta);
    shift = static_cast<float>(shift);  // as all terms have it
    const double fixed = kSums + float_error(e, shift, question.beta) + dot_error(e, hidden) + allow_float32(e, hidden, question, line.w);
    line.aim = question.eps - fixed;
    for (const Scored& s : scored) line.exact += std::exp(e.linked(s.z) * question.beta - shift);
    guess(e, look, q, scored, question.beta, shift, draws, line);
    line.exact = take_out(e, look, q, scored, question.beta, &line.w.shift);
    for (const Scored& s : scored)
        if (!look.gaps.empty()) look.gaps[s.id / kBlock] = std::numeric_limits<float>::quiet_NaN();  // the sum of its block has it
    if (look.rad.empty()) line.own.resize(e.padded);
    line.gap = look.rad.empty() ? line.own.data() : look.rad.data();
    line.closer.resize(chunks_of(e));
    line.weighed.resize(e.padded / kBlock), line.blocks.resize(e.padded / kBlock);
    return line;
}

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

// Reads rows some time after they were asked for, and adds up what they say, chunk by chunk: in the same order whichever threads do it.
class Rows {
  public:
    Rows(const Executor& e, const double* hidden, double beta, const Weighed& w, std::vector<double>& sums)
        : e_(e), hidden_(hidden), beta_(beta), w_(w), sums_(sums) {}

    // The error of the middle of a class, so many times.
    void take(int64_t id, float est, double times) {
        prefetch_row(e_.weight, static_cast<int64_t>(e_.row_bytes()), id);
        if (e_.bias != nullptr) __builtin_prefetch(e_.bias + id);
        wanted_.push_back({id, 0});
        taken_.push_back({times, est});
        if (wanted_.size() >= read_ + kBehind + kGroup) read(kGroup);
    }
    void close() {
        if (read_ < wanted_.size()) read(wanted_.size() - read_);
    }
    int64_t count() const { return static_cast<int64_t>(wanted_.size()); }

  private:
    static constexpr size_t kGroup = 8, kBehind = 24;

    void read(size_t n) {
        some_.assign(wanted_.begin() + read_, wanted_.begin() + read_ + n);
        score_near(e_, hidden_, w_, some_, 1);
        for (size_t i = 0; i < n; ++i) {
            const auto& [times, est] = taken_[read_ + i];
            const double middle = std::exp(e_.linked(est) * beta_ - w_.shift), term = std::exp(e_.linked(some_[i].z) * beta_ - w_.shift);
            sums_[some_[i].id / kChunk] += times * (term - middle);
        }
        read_ += n;
    }

    const Executor& e_;
    const double* hidden_;
    double beta_;
    const Weighed& w_;
    std::vector<double>& sums_;
    std::vector<Scored> wanted_, some_;
    std::vector<std::pair<double, float>> taken_;
    size_t read_ = 0;
};

// Numbers in [0, 1), by name.
double uniform(uint64_t key, uint64_t name) { return static_cast<double>(mix(key + 0x9E3779B97F4A7C15u * (name + 1)) >> 11) * 0x1p-53; }

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
        double sum = before;
        before += line.blocks[first / kBlock];
        if (!(point < before)) continue;
        if (!line.weighed[first / kBlock]) weigh_each(e, look, q, beta, first, kBlock, kInf, line, none);
        const float* gap = line.gap + first;
        float columns[kColumns];
        for (int64_t j = 0; j < kColumns; ++j) columns[j] = (gap[j] + gap[j + kColumns]) + (gap[j + 2 * kColumns] + gap[j + 3 * kColumns]);
        for (int64_t j = 0; j < kColumns; ++j) {
            if (!(point < sum + columns[j])) {
                sum += columns[j];
                continue;
            }
            for (int64_t i = j; i < kBlock; i += kColumns) {
                int times = 0;
                for (sum += gap[i]; point < sum; point = next()) ++times, ++count;
                if (times > 0) rows.take(first + i, est[first + i], times * line.step / gap[i]);
            }
        }
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

// The part of a thread: what is wide in the chunks that it took, and what was read.
struct Share {
    std::vector<Wide> wide;
    int64_t rows = 0;
    double bytes = 0;
};

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

}  // namespace

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
    Line line = start_line(e, look, q, question, e.draws, scored);
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

namespace {

// The estimates of one query, [spends][tries].
void try_one(const Executor& e, const double* hidden, int64_t row, const Question& question, const std::vector<double>& spends, int tries,
             double* out) {
    Look look = start_look(e, e.preview, hidden, {row}, 1);
    look.est.resize(e.padded);
    look.rad.resize(e.padded);
    look.note_gaps(e.padded);
    look_at_all(e, look, question);
    Answer answer;
    std::vector<Scored> scored;
    std::vector<float> est, upper;
    if (look.finish_densely[0].load() != 0) return;
    if (question.k > 0 && !best_of(e, look, 0, question.k, 1, answer.best, scored, est, upper, answer)) return;
    const Interval sure = normaliser(e, look, 0, question, scored, est, upper);
    if (sure.error + dot_error(e, look.hidden.data()) <= question.eps || !learned(e, look, 0, question)) return;
    const std::vector<float> kept(look.est.data(), look.est.data() + e.padded), radii(look.rad.data(), look.rad.data() + e.padded);
    Draws draws = e.draws;
    const uint64_t key = key_of(look.hidden.data(), e.dim, question.seed);
    for (size_t s = 0; s < spends.size(); ++s) {
        draws.spend = spends[s];
        std::copy(kept.begin(), kept.end(), look.est.data());
        std::copy(radii.begin(), radii.end(), look.rad.data());
        Line line = start_line(e, look, 0, question, draws, scored);
        if (!(line.likely < most_rows(e, look))) continue;
        std::vector<Share> all(1);
        Share& own = all.front();
        for (int64_t c = 0; c < chunks_of(e); ++c) weigh_chunk(e, look, 0, question.beta, c, line, own.wide);
        for (size_t level = 0; level < e.deeper.size(); ++level) look_closer(e, look, 0, question.beta, line, level, own.wide, &own.bytes);
        for (int t = 0; t < tries; ++t) {
            std::vector<double> sums(chunks_of(e));
            Rows rows(e, look.hidden.data(), question.beta, line.w, sums);
            const uint64_t other = mix(key + static_cast<uint64_t>(t));
            for (int64_t c = 0; c < chunks_of(e); ++c) draw_chunk(e, look, 0, question.beta, line, c, other, rows);
            draw_wide(line, own.wide, other, rows);
            rows.close();
            own.rows = rows.count();
            out[s * tries + t] = estimate(e, look, line, all, sums, answer);
        }
    }
}

}  // namespace

std::vector<double> try_draws(const Executor& e, const double* hidden, int64_t count, const Question& question,
                              const std::vector<double>& spends, int tries) {
    const size_t each = spends.size() * static_cast<size_t>(tries);
    std::vector<double> out(static_cast<size_t>(count) * each, std::numeric_limits<double>::quiet_NaN());
    Turns<int64_t> next;
    run_parallel(static_cast<int>(std::min<int64_t>(question.threads, count)), [&](int) {
        for (int64_t i = next++; i < count; i = next++) try_one(e, hidden, i, question, spends, tries, out.data() + static_cast<size_t>(i) * each);
    });
    return out;
}

}  // namespace headlong
