// The normaliser by a bet on sampled rows, lost by one query in 1 / delta. Every class has a middle b = exp(estimate) and a gap u that its
// term is no further away from b:
//
//     sum of terms = exact + sum b + (sum u) * E[X],    X = (term - b) / u in [-1, 1] of a class drawn in proportion to u
//
// The classes with the widest gaps are scored; the others are sampled, and a bet against every
// other mean of X wins quickly (Waudby-Smith and Ramdas 2023, "Estimating means of bounded random variables by betting").
#include <algorithm>
#include <numeric>

#include "executor/verbs.h"
#include "normaliser/betting.h"
#include "normaliser/draw_points.h"
#include "normaliser/histogram.h"
#include "runtime/prefetch.h"
#include "runtime/shared_work.h"
#include "runtime/trace.h"

namespace headlong {
namespace {

constexpr double kFirst = 0.95;  // of the draws that are expected to be enough: most bets are won by the first ones

// The mean of X^2 that is to be expected where classes use a share `used` of their radii, as a root of mean squares: that of
// (e^g - 1) / (e^r - 1), g normal with a deviation of used * r, by some classes that stand for all. It only decides what is read in
// which order: no bet is won by it.
double spread_of(const Executor& e, const Look& look, int q, double used) {
    constexpr double kLeast = 2e-4, kMostSpread = 0.1, kMostRadius = 20;
    double squares = 0, gaps = 0;
    for (int64_t i = 0; i < 16; ++i) {
        const double r = std::min<double>(kMostRadius, look.prepared.radius[q].at(e.vocab * i / 16)), s = used * used * r * r;
        if (!(r > 0)) continue;
        squares += (std::exp(2 * s) - 2 * std::exp(s / 2) + 1) / std::expm1(r);
        gaps += std::expm1(r);
    }
    return gaps > 0 ? std::min(kMostSpread, std::max(kLeast, squares / gaps)) : kLeast;
}

}  // namespace

Status bet(const Executor& e, Look& look, int q, const Question& question, double used, int threads, std::vector<Scored>& scored,
           Interval& lse, Answer& answer) {
    Weighed w;
    double exact = take_out(e, look, q, scored, question.beta, &w.shift);
    const double fixed = float_error(e, w.shift, question.beta) + dot_error(e, &look.hidden[q * e.dim]) + allow_float32(e, &look.hidden[q * e.dim], question, w);
    const double aim = question.eps - fixed, odds = 2 / question.delta, most = most_rows(e, look);
    if (aim <= 0) return refine(e, look, q, question, threads, scored, lse, answer);
    w.slop = static_cast<float>(0x1p-14 + 2 * fixed);
    const Rule rule{odds, spread_of(e, look, q, used)};
    weigh(e, look, q, question.beta, threads, w);
    mark("bet: weighing");
    const Wager wager = cheapest_wager(e, w, exact, aim, rule, threads, answer);
    mark("bet: outline");
    if (!(wager.cost < worth_scoring(e, look) * static_cast<double>(e.vocab))) return Status::finish_densely;
    Scratch<double> before(e.padded / kRun + 1);
    if (!score_widest(e, look, q, wager.edge, 2 * most, question.beta, threads, w, before, &exact, scored)) return Status::finish_densely;
    mark("bet: widest rows");
    const double total = before[e.padded / kRun], known = exact + w.sum;
    if (out_of_range(exact, known)) return Status::finish_densely;
    if (!(total > 0)) {
        lse = {w.shift + std::log(known), fixed};
        return Status::done;
    }
    const uint64_t key = key_of(&look.hidden[q * e.dim], e.dim, question.seed);
    const auto term = [&](const Scored& s) { return std::exp(e.linked(s.z) * question.beta - w.shift); };
    Bet bet{known, total, aim, odds};
    double draws = kFirst * rule.draws(aim * known / total);
    for (uint32_t round = 0; round < 16; ++round) {
        if (static_cast<double>(bet.drawn.size()) + draws > most) return Status::finish_densely;
        if (draws > 0)
            for (double x : sample_terms(e, &look.hidden[q * e.dim], w, before, sorted_points(*e.kernels, key, round, static_cast<int64_t>(draws) + 16, total), threads, term, answer))
                bet.add(x);
        if (bet.won()) {
            lse = {w.shift + std::log(bet.middle()), question.eps};
            return Status::done;
        }
        draws = std::max(1.1 * bet.wanted() - bet.count(), 16 + 0.2 * bet.count());
    }
    return Status::finish_densely;
}

// Draws are made from a seed and the query's content: the same query has the same answer.
uint64_t key_of(const double* hidden, int64_t dim, uint64_t seed) {
    uint64_t part[4];  // side by side: each waits for its last
    for (uint64_t i = 0; i < 4; ++i) part[i] = seed + i;
    for (int64_t j = 0; j < dim; ++j) {
        uint64_t word;
        std::memcpy(&word, hidden + j, 8);
        part[j % 4] = mix(part[j % 4] ^ word) + 0x9E3779B97F4A7C15u;
    }
    return mix(mix(mix(part[0]) ^ part[1]) ^ part[2]) ^ part[3];
}

namespace {

// The classes on whose gaps some points fall, and how many on each. Their rows are asked for at once: by the time that the last is
// found, the first has come.
void find_drawn(const Executor& e, const Weighed& w, const Scratch<double>& before, const double* points, int64_t count,
                std::vector<Scored>& distinct, std::vector<int32_t>& times) {
    const int64_t runs = e.padded / kRun, bytes = static_cast<int64_t>(e.row_bytes());
    int64_t run = std::upper_bound(before.data() + 1, before.data() + runs, points[0]) - (before.data() + 1), place = 0;
    double sum = 0;  // of the classes of the run before `place`, and those of the runs before
    for (const double* point = points; point < points + count; ++point) {
        for (; run + 1 < runs && before[run + 1] <= *point; ++run) place = 0;
        if (place == 0) sum = before[run];
        int64_t last = -1;  // where roundings lead beyond the run, its last class that has any mass
        for (int64_t i = run * kRun + place; i < (run + 1) * kRun; ++i) {
            if (!(w.gap[i] > 0)) continue;
            last = i;
            if (*point < sum + w.gap[i]) break;
            if (i + 1 < (run + 1) * kRun) sum += w.gap[i], place = i + 1 - run * kRun;
        }
        if (last < 0)
            for (last = run * kRun + place; last > 0 && !(w.gap[last] > 0);) --last;
        if (distinct.empty() || distinct.back().id != last) {
            prefetch_row(e.weight, bytes, last);
            distinct.push_back({last, 0}), times.push_back(0);
        }
        ++times.back();
    }
}

}  // namespace

// X = (term - middle) / gap of the classes on whose gaps points fall, which ascend; `before`: the sums of the gaps of the runs of
// classes before each. So many points at a time, whichever thread takes them: a class of two groups is read twice.
std::vector<double> sample_terms(const Executor& e, const double* hidden, const Weighed& w, const Scratch<double>& before,
                                 const std::vector<double>& points, int threads, const TermOf& term, Answer& answer) {
    constexpr int64_t kGroup = 32;
    const int64_t count = static_cast<int64_t>(points.size()), groups = (count + kGroup - 1) / kGroup;
    std::vector<double> drawn(points.size());
    std::vector<int64_t> rows(groups);
    over_chunks(groups, groups < 3 ? 1 : threads, [&](int, int64_t g) {
        std::vector<Scored> distinct;
        std::vector<int32_t> times;
        distinct.reserve(kGroup), times.reserve(kGroup);
        find_drawn(e, w, before, &points[g * kGroup], std::min(kGroup, count - g * kGroup), distinct, times);
        score_near(e, hidden, w, distinct, 1);
        rows[g] = static_cast<int64_t>(distinct.size());
        double* to = &drawn[g * kGroup];
        for (size_t d = 0; d < distinct.size(); ++d) to = std::fill_n(to, times[d], (term(distinct[d]) - w.middle[distinct[d].id]) / w.gap[distinct[d].id]);
    });
    const int64_t read = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    answer.bytes += static_cast<double>(read) * e.row_bytes();
    answer.rows += read;
    return drawn;
}

}  // namespace headlong
