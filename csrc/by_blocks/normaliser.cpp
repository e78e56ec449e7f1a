// The normaliser of a query from the blocks that its search opened, and from a few of the others, by as many rows as queries taught.
//
// The search leaves an estimate of each class of an open block. Of the other blocks one is drawn on each n-th of the line of exp(middle
// of the box), and stands for as many as it was unlikely to be. With middles b = exp(estimate) and gaps u = b (exp(narrow * radius) - 1),
// both times what their block stands for, and r = sum u / (aim * sum b):
//
//     1. spend / kFirstStage * (r^2 + r) classes are looked at closer: those whose gap is a step of the line, and one on each step of the others
//     2. spend / (1 - kFirstStage) * (r^2 + r) rows are read of what closer middles b' leave open, in the same way
//     sum of terms ~ exact + sum b + sum over 1. of weight * (b' - b) + sum over 2. of weight * (term - b'),   weight = 1 or step / u
//
// (term - b) / u has a variance near one whatever the query, so one number serves them all: `spend` was bounded on queries that chose
// nothing else (previews/learned_draw_counts.py). What the blocks that were drawn add to the error was in those bounds, too.
#include "by_blocks/normaliser.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "executor/verbs.h"
#include "normaliser/draw_points.h"
#include "normaliser/histogram.h"
#include "runtime/pool.h"
#include "runtime/prefetch.h"
#include "runtime/shared_work.h"
#include "runtime/trace.h"

namespace headlong {
namespace {

constexpr double kFirstStage = 0.6;                          // of the squared error: what a closer look costs is a third of a row
constexpr int64_t kFour = kBlock / kNeighbours;         // blocks whose gaps are summed up together
constexpr double kFewestBlocks = 16, kMostBlocks = Trail::kMore - kFour;  // of those that were not opened; between them one for each eps
constexpr double kMostRows = 4096;                      // beyond, a look at all classes is cheaper
constexpr int64_t kAhead = 8;                           // records asked for before they are read
constexpr float kNone = -std::numeric_limits<float>::infinity();

// What the search left of one query, the same for all that is drawn then.
struct Start {
    SearchResult found;
    Trail trail;
    Weighed w;             // its shift, and the hidden vector in float32 where that will do
    double exact = 0, aim = 0;
    std::vector<float> boxes;  // exp(middle) of the blocks that were not opened
    std::vector<double> box_sums;
    int64_t opened = 0;    // blocks of the trail, made up to whole fours; those that are drawn come behind them
};

// A class that was taken: its place in the order, the rows that it stands for, its estimate and its middle.
struct Taken {
    int32_t place;
    float est;
    double weight, middle;
};

double total_of(const std::vector<double>& sums) { return std::accumulate(sums.begin(), sums.end(), 0.0); }

// Points of a line, one in each of `count` equal parts of it.
class Points {
  public:
    Points(const Kernels& kernels, uint64_t key, uint32_t stage, double total, int64_t count)
        : at_(spread_points(kernels, key, 0x10000000u | stage, count, total)), step_(total / static_cast<double>(count)) {}
    // How many come before `sum`; they are gone then.
    int before(double sum) {
        int times = 0;
        for (; left() && at() < sum; ++drawn_) ++times;
        return times;
    }
    bool left() const { return drawn_ < at_.size(); }
    double at() const { return at_[drawn_]; }
    double step() const { return step_; }

  private:
    std::vector<double> at_;
    double step_;
    size_t drawn_ = 0;
};

// Draws along runs of so many parts u(run), looked up where points are, whose sums are known; take(position, points on it). Within a run
// parts follow each other column by column of sixteen.
template <int64_t kWide, typename Parts, typename Take>
void draw_along(Points& points, const std::vector<double>& sums, const Parts& parts, const Take& take) {
    double before = 0;
    for (size_t run = 0; run < sums.size() && points.left(); before += sums[run++]) {
        if (!(points.at() < before + sums[run])) continue;
        const float* u = parts(static_cast<int64_t>(run));
        float columns[kRun] = {};
        for (int64_t i = 0; i < kWide; i += kRun)
            for (int64_t j = 0; j < kRun; ++j) columns[j] += u[i + j];
        for (Reached column{0, before}; points.left() && (column = reached(columns, 1, kRun, points.at(), column)).i < kRun; ++column.i) {
            Reached one = column;
            for (; points.left() && (one = reached(u, kRun, kWide, points.at(), one)).i < kWide; one.i += kRun) {
                one.sum += u[one.i];
                if (const int times = points.before(one.sum); u[one.i] > 0) take(static_cast<int64_t>(run) * kWide + one.i, times);
            }
            column.sum = one.sum;
        }
    }
}

// exp(middle of the box) of all blocks that were not opened, as gaps: all boxes are taken to be as wide.
void weigh_boxes(const Executor& e, const Blocks& b, Start& s) {
    constexpr float kOne = 0.7320508f;  // w + w^2 / 2 = 1
    const int64_t nodes = b.levels[0].groups * kNeighbours, n = in_blocks(nodes);
    for (int32_t group : s.trail.groups) s.trail.boxes[group] = kNone;
    s.boxes.assign(n, kOne);
    s.trail.boxes.resize(n, kNone);
    std::fill(s.trail.boxes.begin() + nodes, s.trail.boxes.begin() + n, kNone);
    s.box_sums.resize(n / kBlock);
    int32_t ids[1];
    float wide[1];
    int64_t none = 0;
    e.kernels->drawn({e.link, 1.f, s.w.shift, 1.f, -kNone}, s.trail.boxes.data(), s.boxes.data(), n, 0, ids, wide, &none, s.box_sums.data());
}

// The search, and what was scored. False where blocks do not answer.
bool start(const Executor& e, const Blocks& b, const double* hidden, const Question& question, Start& s) {
    s.found = search_leaving(b, hidden, std::min(kDrawnFor, b.vocab), s.trail);
    if (!s.found.done || s.found.best.empty() || !std::isfinite(s.found.best.front().z)) return false;
    s.w.floats.clear();
    s.w.shift = static_cast<float>(e.linked(s.found.best.front().z));
    const double fixed = float_error(e, s.w.shift, 1) + dot_error(e, hidden) + allow_float32(e, hidden, question, s.w);
    s.aim = question.eps - fixed;
    if (!(fixed < 0.5 * question.eps)) return false;
    const auto found = static_cast<int64_t>(s.trail.groups.size());
    s.opened = (found + kFour - 1) / kFour * kFour;
    std::fill_n(&s.trail.est[found * kNeighbours], (s.opened - found) * kNeighbours, kNone);
    s.exact = 0;
    for (size_t i = 0; i < s.trail.places.size(); ++i) {
        if (!std::isfinite(s.trail.z[i])) return false;
        const int32_t place = s.trail.places[i];
        s.trail.est[s.trail.at[place / kNeighbours] * kNeighbours + place % kNeighbours] = kNone;
        s.exact += std::exp(e.linked(s.trail.z[i]) - s.w.shift);
    }
    weigh_boxes(e, b, s);
    mark("block draws: boxes");
    return true;
}

// Looks at some of the blocks that were not opened, which go behind the others; returns what each of them stands for.
std::vector<float> draw_blocks(const Blocks& b, Start& s, const Kernels& kernels, const Question& question, uint64_t key, Answer& answer) {
    std::vector<float> stands;
    const double total = total_of(s.box_sums);
    s.trail.groups.resize(s.opened);
    if (!(total > 0)) return stands;
    const BlockLevel& leaves = b.levels.back();
    const int64_t bytes = leaves.shape.group_bytes();
    Points points(kernels, key, 0, total, static_cast<int64_t>(std::clamp(1 / question.eps, kFewestBlocks, kMostBlocks)));
    draw_along<kBlock>(points, s.box_sums, [&](int64_t run) { return &s.boxes[run * kBlock]; }, [&](int64_t group, int times) {
        prefetch(leaves.records + group * bytes, bytes);
        s.trail.groups.push_back(static_cast<int32_t>(group));
        stands.push_back(static_cast<float>(times * points.step() / s.boxes[group]));
    });
    for (size_t g = s.opened; g < s.trail.groups.size(); ++g)
        b.looks->sixteen(leaves.records + s.trail.groups[g] * bytes, leaves.shape, s.trail.own, 0, &s.trail.est[g * kNeighbours], &s.trail.upper[g * kNeighbours]);
    answer.bytes += static_cast<double>(stands.size()) * static_cast<double>(bytes);
    return stands;
}

// The gaps of the blocks that were opened, and their sums by fours; those from `edge` on are taken out, take(position). Returns the sum of
// their middles.
template <typename Take>
double weigh_opened(const Executor& e, const Start& s, double narrow, float edge, float* gap, double* sums, const Take& take) {
    const int64_t n = s.opened * kNeighbours;
    const float *est = s.trail.est.data(), *upper = s.trail.upper.data();
    for (int64_t i = 0; i < n; ++i) gap[i] = upper[i] - est[i];
    Scratch<int32_t> ids(n);
    Scratch<float> wide(n);
    int64_t count = 0;
    const double sum = e.kernels->drawn({e.link, 1.f, s.w.shift, static_cast<float>(narrow * e.link_a), edge}, est, gap, n, 0, ids.data(), wide.data(), &count, sums);
    for (int64_t i = 0; i < count; ++i) take(ids[i]);
    return sum;
}

// The same of those that were drawn, times what they stand for.
template <typename Take>
double weigh_drawn(const Executor& e, const Start& s, const std::vector<float>& stands, double narrow, float edge, float* gap, double* sums, const Take& take) {
    constexpr int64_t kClasses = kFour * kNeighbours;
    float rad[kClasses], middle[kClasses];
    double sum = 0;
    for (size_t first = 0; first < stands.size(); first += kFour) {
        const int64_t start = (s.opened + static_cast<int64_t>(first)) * kNeighbours;
        const float *est = &s.trail.est[start], *upper = &s.trail.upper[start];
        for (int64_t i = 0; i < kClasses; ++i) rad[i] = est[i] > kNone ? (upper[i] - est[i]) * static_cast<float>(narrow) : 0.f;
        e.kernels->gaps(est, rad, kClasses, e.link, 1.f, s.w.shift, 0.f, middle, gap);
        double left = 0;
        for (int64_t i = 0; i < kClasses; ++i, ++gap) {
            const size_t block = first + static_cast<size_t>(i / kNeighbours);
            const float times = block < stands.size() ? stands[block] : 0.f;
            sum += static_cast<double>(times) * middle[i];
            *gap *= times;
            if (*gap >= edge) take(start + i), *gap = 0;
            left += *gap;
        }
        *sums++ = left;
    }
    return sum;
}

double rows_for(double spend, double gaps, double aim, double sum) {
    const double r = gaps / std::max(aim * sum, 1e-300);
    return std::ceil(spend * (r * r + r));
}

// The gap from which a class stands for itself: none of the others has more than a few points.
float edge_for(double spend, double aim, double sum) { return static_cast<float>(std::min(aim * sum / spend, 1e30)); }

// What rows say beside the middles of some classes: the sum of weight * (term - middle).
double from_rows(const Executor& e, const Blocks& b, const Start& s, const double* hidden, const std::vector<Taken>& taken, Answer& answer) {
    std::vector<Scored> rows;
    rows.reserve(taken.size());
    const auto bytes = static_cast<int64_t>(e.row_bytes());
    for (const Taken& one : taken) {
        rows.push_back({b.order[one.place], 0});
        prefetch_row(e.weight, bytes, rows.back().id);
    }
    score_near(e, hidden, s.w, rows, 1);
    answer.rows += static_cast<int64_t>(rows.size());
    answer.bytes += static_cast<double>(rows.size()) * e.row_bytes();
    double sum = 0;
    for (size_t i = 0; i < rows.size(); ++i) sum += taken[i].weight * (std::exp(e.linked(rows[i].z) - s.w.shift) - taken[i].middle);
    return sum;
}

// The same of closer looks, which replace what they look at, and of rows for what those leave open; NaN where that would be too much.
double from_closer_looks(const Executor& e, const Blocks& b, const Start& s, const double* hidden, double spend, uint64_t key, double known,
                         const std::vector<Taken>& taken, Answer& answer) {
    const auto count = static_cast<int64_t>(taken.size()), n = in_blocks(count), bytes = b.closer_shape.class_bytes();
    Scratch<float> est(n), rad(n), middle(n), gap(n);
    std::fill_n(est.data(), n, -std::numeric_limits<float>::infinity());
    std::fill_n(rad.data(), n, 0.f);
    for (int64_t i = 0; i < count; ++i) {
        if (i + kAhead < count) prefetch(b.closer + taken[i + kAhead].place * bytes, bytes);
        est[i] = taken[i].est;
        const float upper = b.looks->closer(b.closer + taken[i].place * bytes, b.closer_shape, s.trail.closer, &est[i]);
        rad[i] = (upper - est[i]) * static_cast<float>(b.draws.narrow[1]);
    }
    answer.bytes += static_cast<double>(count * bytes);
    e.kernels->gaps(est.data(), rad.data(), n, e.link, 1.f, s.w.shift, 0.f, middle.data(), gap.data());
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) {
        sum += taken[i].weight * (middle[i] - taken[i].middle);
        gap[i] *= static_cast<float>(taken[i].weight);
    }
    std::vector<double> sums(n / kRun);
    std::vector<int32_t> ids(n + kRun);
    std::vector<float> kept(gap.data(), gap.data() + n);
    std::vector<Taken> rows;
    const auto take = [&](int64_t at, double weight) { rows.push_back({taken[at].place, est[at], weight, middle[at]}); };
    const int64_t wide = e.kernels->split(kept.data(), n, edge_for(spend, s.aim, known + sum), 0, ids.data(), sums.data());
    for (int64_t i = 0; i < wide; ++i) take(ids[i], taken[ids[i]].weight);
    const double total = total_of(sums), wanted = rows_for(spend, total, s.aim, known + sum);
    if (!(wanted < kMostRows)) return std::numeric_limits<double>::quiet_NaN();
    if (wanted > 0) {
        Points points(*e.kernels, key, 2, total, static_cast<int64_t>(wanted));
        draw_along<kRun>(points, sums, [&](int64_t run) { return &kept[run * kRun]; },
                   [&](int64_t at, int times) { take(at, taken[at].weight * times * points.step() / kept[at]); });
    }
    mark("block draws: closer looks");
    return sum + from_rows(e, b, s, hidden, rows, answer);
}

// What is looked at closer, or read: the widest gaps, and points on the line of the others; `known` gets the sum of all middles. False
// where that would be too many.
bool choose(const Executor& e, const Blocks& b, const Start& s, const std::vector<float>& stands, double spend, uint64_t key, double* known,
            std::vector<Taken>& taken) {
    const int64_t fours = s.opened / kFour + (static_cast<int64_t>(stands.size()) + kFour - 1) / kFour;
    const float edge = edge_for(spend, s.aim, s.exact);
    std::vector<double> sums(fours);
    Scratch<float> gaps(fours * kBlock);
    const auto take = [&](int64_t at, double part) {
        const int64_t g = at / kNeighbours;
        const double stood = g < s.opened ? 1.0 : static_cast<double>(stands[g - s.opened]), est = s.trail.est[at];
        const auto place = static_cast<int32_t>(s.trail.groups[g] * kNeighbours + at % kNeighbours);
        taken.push_back({place, s.trail.est[at], stood * part, std::exp(e.linked(est) - s.w.shift)});
    };
    const auto whole = [&](int64_t at) { take(at, 1); };
    *known = s.exact + weigh_opened(e, s, b.draws.narrow[0], edge, gaps.data(), sums.data(), whole);
    *known += weigh_drawn(e, s, stands, b.draws.narrow[0], edge, &gaps[s.opened * kNeighbours], sums.data() + s.opened / kFour, whole);
    mark("block draws: weighing");
    const double total = total_of(sums), wanted = rows_for(spend, total, s.aim, *known);
    if (!(wanted < kMostRows) || static_cast<double>(taken.size()) > kMostRows) return false;
    if (wanted == 0) return true;
    Points points(*e.kernels, key, 1, total, static_cast<int64_t>(wanted));
    draw_along<kBlock>(points, sums, [&](int64_t run) { return &gaps[run * kBlock]; },
               [&](int64_t at, int times) { take(at, times * points.step() / gaps[at]); });
    mark("block draws: choice");
    return true;
}

// The normaliser as `spend` and `key` say; NaN where a look at all classes is cheaper.
double estimate(const Executor& e, const Blocks& b, Start& s, const double* hidden, const Question& question, double spend, uint64_t key,
                Answer& answer) {
    const double none = std::numeric_limits<double>::quiet_NaN();
    const bool closer = b.closer != nullptr;
    const std::vector<float> stands = draw_blocks(b, s, *e.kernels, question, key, answer);
    mark("block draws: blocks");
    std::fill_n(&s.trail.est[s.trail.groups.size() * kNeighbours], 4 * kNeighbours, kNone);  // up to whole fours of blocks
    double known = 0;
    std::vector<Taken> taken;
    if (!choose(e, b, s, stands, closer ? spend / kFirstStage : spend, key, &known, taken) || out_of_range(s.exact, known)) return none;
    const double more = closer ? from_closer_looks(e, b, s, hidden, spend / (1 - kFirstStage), key, known, taken, answer) : from_rows(e, b, s, hidden, taken, answer);
    mark("block draws: rows");
    return std::isnan(more) ? none : s.w.shift + std::log(std::max(known + more, s.exact));
}

// One query; false where blocks do not answer it.
bool answer_one(const Executor& e, const Blocks& b, const double* hidden, const Question& question, Answer& answer) {
    static thread_local Start s;
    const bool begun = start(e, b, hidden, question, s);
    answer.rows += s.found.rows;  // in vain or not
    answer.bytes += s.found.bytes;
    if (!begun) return false;
    answer.lse = estimate(e, b, s, hidden, question, b.draws.spend, key_of(hidden, e.dim, question.seed), answer);
    if (std::isnan(answer.lse)) return false;
    answer.error = question.eps;
    answer.proved = true;
    for (size_t i = 0; i < std::min<size_t>(question.k, s.found.best.size()); ++i) answer.best.push_back({s.found.best[i].id, s.found.best[i].z});
    return true;
}

}  // namespace

bool learned_by_blocks(const Blocks& b, const Question& question, int64_t count) {
    const bool can = b.draws.spend > 0 && b.levels.size() == 2 && b.rays == nullptr && b.beside == nullptr && b.there == nullptr && b.names == nullptr && b.factor == 1 && b.look <= kMostLook;
    const bool asked = question.eps == b.draws.eps && question.delta > 0 && question.mask == nullptr && question.beta == 1;
    return can && asked && question.k <= kDrawnFor && count <= kDrawnAlone;
}

std::vector<Answer> ask_by_blocks(const Executor& e, const Blocks& b, const double* hidden, int64_t count, const Question& question) {
    std::vector<Answer> answers(count);
    std::vector<uint8_t> done(count);
    run_parallel(static_cast<int>(std::min<int64_t>(question.threads, count)), [&](int first) {
        for (int64_t q = first; q < count; q += std::min<int64_t>(question.threads, count)) done[q] = answer_one(e, b, hidden + q * e.dim, question, answers[q]);
    });
    Question other = question;
    other.learned = false;
    for (int64_t q = 0; q < count; ++q)
        if (done[q] == 0) {
            Answer found = std::move(ask(e, hidden + q * e.dim, 1, other, false).front());
            found.rows += answers[q].rows;
            found.bytes += answers[q].bytes;
            answers[q] = std::move(found);
        }
    return answers;
}

std::vector<double> try_block_draws(const Executor& e, const Blocks& b, const double* hidden, int64_t count, const Question& question,
                                    const std::vector<double>& spends, int tries) {
    const size_t each = spends.size() * static_cast<size_t>(tries);
    std::vector<double> out(static_cast<size_t>(count) * each, std::numeric_limits<double>::quiet_NaN());
    Turns<int64_t> next;
    run_parallel(static_cast<int>(std::min<int64_t>(question.threads, count)), [&](int) {
        static thread_local Start s;
        for (int64_t i = next++; i < count; i = next++) {
            const double* row = hidden + i * e.dim;
            if (!start(e, b, row, question, s)) continue;
            const uint64_t key = key_of(row, e.dim, question.seed);
            Answer answer;
            for (size_t p = 0; p < spends.size(); ++p)
                for (int t = 0; t < tries; ++t)
                    out[i * each + p * tries + t] = estimate(e, b, s, row, question, spends[p], mix(key + static_cast<uint64_t>(t)), answer);
        }
    });
    return out;
}

}  // namespace headlong
