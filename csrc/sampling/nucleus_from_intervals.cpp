// Whether a class is in the nucleus, from intervals, rows and, where a bet is allowed, a sample.
//
// A class s stays while the classes better than it have less than top_p of all mass, that is while
//     sum_i y_i > 0,   y_i = exp(link(z_i) beta) (top_p - [i better than s]).
// The interval of z_i gives what y_i is at the estimate, c_i, and how far r_i it may be from there at most, to the side that
// speaks against what is to be shown: below it for "inside", above it for "outside". A lighter mass than thought can take no
// more than itself away, so for "inside", which nearly all classes are that come up, r_i is small wherever i is surely worse
// than s, however wide its interval. Where |sum c| > sum r, it is proved.
//
// Else the classes with the largest r_i are scored until a bet is cheap: classes are drawn in
// proportion to r_i, X = (y_i - c_i) / r_i is no less than -1 (no more than 1), and that its mean is no higher than -sum c / sum r
// (no lower) is bet against until it is refuted (normaliser/betting.h). What is drawn next may depend on what was drawn before: wealth is
// carried on.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "executor/verbs.h"
#include "normaliser/betting.h"
#include "normaliser/draw_points.h"
#include "normaliser/histogram.h"
#include "runtime/prefetch.h"
#include "runtime/shared_work.h"

namespace headlong {
namespace {

constexpr double kScattered = 0.2;  // the mean of X^2 that is expected before anything is drawn
constexpr double kLeft = 0.5;        // what rows leave, in units of what is to be shown
constexpr size_t kMostDrawn = 512;  // more is scored before more than these are drawn
constexpr double kFew = 96;         // draws that are no reason to score rows
constexpr int kSteps = 24;

// c and r of n classes, those at -inf have 0 and 0; the sum of the former.
double take_sides(const Executor& e, const Sides& sides, const Weighed& w, const float* est, const float* rad, int64_t n, float* middle,
                            float* gap) {
    const float never = std::numeric_limits<float>::infinity(), z = static_cast<float>(sides.of.z);
    // Of a class that is worse than s after all.
    const float cap = static_cast<float>(std::exp(std::min(80.0, e.linked(sides.of.z) * sides.beta - w.shift))) * (1 + w.slop);
    return e.kernels->sides(est, rad, n, e.link, static_cast<float>(sides.beta), w.shift, w.slop,
                          {z, std::nextafterf(z, never), std::nextafterf(z, -never), static_cast<float>(sides.top_p), cap, sides.inside},
                          middle, gap);
}

// c and r of all classes, and the sums of the latter run by run.
void weigh_sides(const Executor& e, const Estimates& all, const Sides& sides, int threads, Weighed& w, Scratch<double>& runs) {
    const int64_t chunks = (e.padded + kChunk - 1) / kChunk;
    std::vector<double> sums(chunks);
    over_chunks(chunks, threads, [&](int, int64_t c) {
        const int64_t first = c * kChunk, n = std::min<int64_t>(kChunk, e.padded - first);
        sums[c] = take_sides(e, sides, w, &all.est[first], &all.rad[first], n, &w.middle[first], &w.gap[first]);
        e.kernels->run_sums(&w.gap[first], n, &runs[first / kRun]);
    });
    w.sum = std::accumulate(sums.begin(), sums.end(), 0.0);
}

// The classes to score, those with the largest r, in the order of their ids: as many as make what is left the cheapest to bet on
// with `odds`, or, without odds, as leave no more than `target`. False: so many that everything is better read.
bool widest_sides(const Executor& e, const Weighed& w, double claim, double target, double odds, int threads, std::vector<int32_t>& ids) {
    const int64_t chunks = (e.padded + kChunk - 1) / kChunk;
    const float floor = std::max(static_cast<float>(target / (2 * static_cast<double>(e.padded))), 1e-37f);
    std::vector<std::vector<int32_t>> each(threads);
    over_chunks(chunks, threads, [&](int t, int64_t c) {
        const float none[kChunk] = {};
        int32_t own[kChunk];
        float kept[kChunk], upper[kChunk];
        const int64_t first = c * kChunk, n = std::min<int64_t>(kChunk, e.padded - first);
        const int64_t came = e.kernels->candidates(&w.gap[first], none, n, floor, static_cast<int32_t>(first), own, kept, upper);
        each[t].insert(each[t].end(), own, own + came);
    });
    std::vector<double> below(kBins + 1, 0.0), prices(kBins, 0.0);
    for (const std::vector<int32_t>& some : each)
        for (int32_t id : some) {
            const int bin = bin_of(w.gap[id]);
            below[bin + 1] += w.gap[id];
            ++prices[bin];
        }
    below[0] = target / 2;  // what the floor left
    for (int b = 0; b < kBins; ++b) below[b + 1] += below[b];
    double spent = 0, least = kInf;
    int cut = kBins;
    for (int b = kBins; b >= 0 && spent < least; --b) {
        spent += b < kBins ? prices[b] : 0;
        double cost = below[b] <= target ? spent : kInf;
        if (odds > 0) cost = spent + draws_for(odds, claim / (below[b] + kLeft * claim), kScattered);
        if (b > bin_of(1e30f) || cost >= least) continue;  // those may be more than a float can say
        least = cost;
        cut = b;
    }
    if (!(least < kMostScored * static_cast<double>(e.vocab) + 1024)) return false;
    for (const std::vector<int32_t>& some : each)
        for (int32_t id : some)
            if (bin_of(w.gap[id]) >= cut) ids.push_back(id);
    return true;
}

// Scores the classes: they leave the sums.
void score_widest_sides(const Executor& e, Estimates& all, const std::vector<int32_t>& ids, int threads, Weighed& w, Scratch<double>& runs, Answer& answer) {
    std::vector<Scored> rows;
    for (int32_t id : ids) rows.push_back({id, 0});
    score_known(e, all, rows, threads, answer);
    for (int32_t id : ids) {
        w.sum -= w.middle[id];
        w.middle[id] = w.gap[id] = 0;
    }
    int64_t last = -1;
    for (int32_t id : ids) {
        const int64_t run = id / kRun;
        if (run != last) runs[run] = std::accumulate(&w.gap[run * kRun], &w.gap[run * kRun] + kRun, 0.0);
        last = run;
    }
}

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

// X = (term - middle) / gap of the classes on whose gaps points fall, which ascend; `before`: the sums of the gaps of the runs of
// classes before each. So many points at a time, whichever thread takes them: a class of two groups is read twice.
template <typename Term>
std::vector<double> sample_terms(const Executor& e, const double* hidden, const Weighed& w, const Scratch<double>& before,
                                 const std::vector<double>& points, int threads, const Term& term, Answer& answer) {
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

}  // namespace

Side side_of_nucleus(const Executor& e, Estimates& all, const Question& question, double top_p, const Scored& of, double odds, uint64_t key, int threads,
                     Answer& answer) {
    const double beta = question.beta;
    const int64_t count = e.padded / kRun;
    Weighed w;
    w.shift = static_cast<float>(std::max(all.shift, e.linked(of.z) * beta));
    for (const Scored& s : all.scored) w.shift = std::max(w.shift, static_cast<float>(e.linked(s.z) * beta));
    w.slop = static_cast<float>(0x1p-14 + 2 * (float_error(e, w.shift, beta) + dot_error(e, all.hidden)));
    w.middle.resize(e.padded);
    w.gap.resize(e.padded);
    Scratch<double> runs(count), before(count + 1);
    const auto term = [&](const Scored& s) {
        const bool above = s.id != of.id && better(s, of);
        return std::exp(e.linked(s.z) * beta - w.shift) * (above ? top_p - 1 : top_p);
    };
    Sides sides{of, top_p, beta, true};
    weigh_sides(e, all, sides, threads, w, runs);
    std::vector<double> gains[2];  // of the bets for outside and for inside
    double exact = 0, size = 0;  // terms that were scored, and what is left of them may be far smaller than they are
    size_t counted = 0;
    int flips = 0;
    for (int step = 0; step < kSteps; ++step) {
        for (; counted < all.scored.size(); ++counted) {
            const double own = term(all.scored[counted]);
            exact += own, size += std::fabs(own);
        }
        const double sum = w.sum + exact, total = std::accumulate(runs.data(), runs.data() + count, 0.0);
        // Sums of float64 and the exact terms are off by far less than this.
        const double rounding = 0x1p-30 * (total + size + std::fabs(sum)), claim = sides.inside ? sum : -sum;
        if (!(std::fabs(sum) < 1e30)) return {};
        if (claim > total * kMost + rounding) return {true, sides.inside, true};
        if (all.given) return {true, sum > 0, true};
        if (!(total > 0)) return {};
        if (claim < 0 && flips < 3) {
            sides.inside = !sides.inside;
            ++flips;
            weigh_sides(e, all, sides, threads, w, runs);
            continue;
        }
        std::vector<double>& won = gains[sides.inside];
        const bool may_bet = odds > 0 && claim > 0 && won.size() < kMostDrawn && total < 1e30;
        double draws = may_bet ? draws_for(odds, claim / total, kScattered) + 8 : kInf;
        std::vector<int32_t> ids;
        const double target = claim > 0 && won.size() < kMostDrawn ? std::min(0.5 * claim, total) : 0.25 * total;
        if (!(draws < kFew)) {
            if (!widest_sides(e, w, claim, target, may_bet ? odds : 0, threads, ids)) return {};
            if (ids.empty() && !may_bet) return {};
            score_widest_sides(e, all, ids, threads, w, runs, answer);
            if (!ids.empty()) continue;
        }
        before[0] = 0;
        for (int64_t r = 0; r < count; ++r) before[r + 1] = before[r] + runs[r];
        const std::vector<double> points = sorted_points(*e.kernels, key, static_cast<uint32_t>(step),
                                                         static_cast<int64_t>(std::min(draws, 128.0)), before[count]);
        const std::vector<double> fresh = sample_terms(e, all.hidden, w, before, points, threads, term, answer);
        const double bound = -sum / total, most = 1 / (sides.inside ? kMost + bound : kMost - bound);
        for (double x : fresh) won.push_back((sides.inside ? x - bound : bound - x) * most);
        if (wins(won, odds, [](double gain) { return gain; })) return {true, sides.inside, false};
    }
    return {};
}

}  // namespace headlong
