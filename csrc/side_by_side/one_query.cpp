// One query of a group from what the pass reported of it: its ids as in executor/best_ids.cpp, its normaliser as in normaliser/by_bet.cpp.
#include <algorithm>
#include <numeric>

#include "executor/verbs.h"
#include "normaliser/betting.h"
#include "normaliser/draw_points.h"
#include "normaliser/histogram.h"
#include "side_by_side/state.h"

namespace headlong {

constexpr double kStart = 0.75;      // of the draws that are expected to win, before the bet is first looked at
constexpr double kScatter = 0.004;   // the mean of X^2 that is expected
constexpr double kFarthest = 40;     // no exponential of batch_weigh is larger
constexpr double kMostThin = 8;      // points on a gap that is drawn from
constexpr size_t kMostClosed = 256;  // of those that are scored for the normaliser that nobody asked for
constexpr double kRebase = 60;       // a score is no further above the shift of all exponentials

// Sums relative to exp(to) from now on.
void Reported::rebase(double to) {
    const double fade = std::exp(shift - to);
    for (double* each : {&middle, &gap, &moved, &exact, &lost, &unit}) *each *= fade;
    shift = to;
}

namespace {

// Rows for the normaliser, in float32 where that is close enough.
void score_narrow(const Executor& e, const BatchState& batch, int q, std::vector<Scored>& rows) {
    if (!batch.narrow[q]) return score(e, &batch.look.hidden[q * e.dim], rows, 1);
    const int64_t n = static_cast<int64_t>(rows.size());
    Scratch<int32_t> ids(n);
    Scratch<float> z(n);
    for (int64_t i = 0; i < n; ++i) ids[i] = static_cast<int32_t>(rows[i].id);
    e.kernels->dot_floats(e.weight, e.kind, e.dim, ids.data(), n, batch.floats.data() + q * e.dim, z.data());
    for (int64_t i = 0; i < n; ++i) rows[i].z = e.exact(z[i], rows[i].id);
}

// Scores the classes of some hits, which leave the sums.
std::vector<Scored> score_hits(const Executor& e, const BatchState& batch, const Question& question, int q, const std::vector<int32_t>& which,
                                         Reported& reported, bool narrow = false) {
    std::vector<Scored> rows;
    rows.reserve(which.size());
    for (const int32_t i : which) rows.push_back({reported.hits[i].id, 0});
    if (narrow) score_narrow(e, batch, q, rows);
    else score(e, &batch.look.hidden[q * e.dim], rows, 1);
    double top = -kInf;
    for (const Scored& s : rows) top = std::max(top, e.linked(s.z) * question.beta);
    if (top > reported.shift + kRebase) reported.rebase(top);
    for (size_t r = 0; r < rows.size(); ++r) {
        const LaneHit& hit = reported.hits[which[r]];
        reported.scored[which[r]] = 1;
        reported.exact += std::exp(e.linked(rows[r].z) * question.beta - reported.shift);
        if (hit.drawn < 0 || !wants_sums(question)) continue;
        const double middle = reported.unit * hit.middle, gap = reported.unit * hit.gap;
        reported.middle -= middle;
        reported.gap -= gap;
        reported.moved -= middle * (static_cast<double>(hit.upper) - hit.est) * e.link_a * question.beta;
        reported.lost += middle + gap;
    }
    reported.rows += static_cast<int64_t>(rows.size());
    return rows;
}

// The k best, as in best_of.
bool best_reported(const Executor& e, const BatchState& batch, const Question& question, int q, Reported& reported, Answer& answer) {
    std::vector<int32_t> open;
    const size_t k = static_cast<size_t>(question.k);
    for (size_t i = 0; i < reported.hits.size(); ++i)
        if (!(reported.hits[i].upper < batch.tau[q])) open.push_back(static_cast<int32_t>(i));
    if (open.size() < k || static_cast<double>(open.size()) > 0.7 * static_cast<double>(e.vocab)) return false;
    const TrueOrder order(*e.kernels, e, &batch.look.hidden[q * e.dim]);
    const auto take = [&](const std::vector<int32_t>& which) {
        const std::vector<Scored> rows = score_hits(e, batch, question, q, which, reported);
        join_best(answer.best, rows, k, order);
    };
    std::nth_element(open.begin(), open.begin() + (k - 1), open.end(), [&](int32_t a, int32_t b) {
        const LaneHit &x = reported.hits[a], &y = reported.hits[b];
        return x.est > y.est || (x.est == y.est && x.id < y.id);
    });
    take({open.begin(), open.begin() + k});
    std::vector<std::pair<float, int32_t>> rivals;  // by their upper ends
    std::vector<int32_t> ids, places;
    for (size_t i = k; i < open.size(); ++i) {
        const LaneHit& hit = reported.hits[open[i]];
        if (hit.upper < answer.best.back().z) continue;
        if (hit.lane == 1 || !std::isfinite(hit.upper)) rivals.push_back({hit.upper, open[i]});
        else ids.push_back(hit.id), places.push_back(open[i]);
    }
    std::vector<float> est(ids.size()), rad(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) est[i] = reported.hits[places[i]].est;
    look_deeper(e, batch.look, q, 0, ids.data(), static_cast<int64_t>(ids.size()), est.data(), rad.data());
    answer.bytes += static_cast<double>(ids.size()) * static_cast<double>(e.deeper[0].bytes);
    for (size_t i = 0; i < ids.size(); ++i) {
        const float upper = std::min(reported.hits[places[i]].upper, est[i] + rad[i]);
        if (!(upper < answer.best.back().z)) rivals.push_back({upper, places[i]});
    }
    if (static_cast<double>(rivals.size()) > e.share * static_cast<double>(e.vocab)) return false;
    std::sort(rivals.begin(), rivals.end(), [&](const auto& a, const auto& b) {
        if (std::isnan(a.first) != std::isnan(b.first)) return std::isnan(a.first);
        return a.first > b.first || (!(a.first < b.first) && reported.hits[a.second].id < reported.hits[b.second].id);
    });
    score_from_the_top(
        0, rivals.size(), [&] { return at_once(question.k); }, [&](size_t i) { return rivals[i].first; }, [&] { return answer.best.back().z; },
        [&](size_t from, size_t to) {
            std::vector<int32_t> some;
            for (; from < to; ++from) some.push_back(rivals[from].second);
            take(some);
        });
    order.settle(answer.best);
    return true;
}

// A point on the line of gaps, and the number it was marked with.
struct Point {
    double mark;
    int32_t hit;
};

// Points on the gaps of all classes that are not scored, and the classes that are wide by what is known of the sum by now. Where
// that is so much larger than the sample said that many points would fall on one gap, all of them are thinned out: of those that
// fell before, the ones with the least marks stay.
std::vector<Point> points_below(const BatchState& batch, int q, double edge, Reported& reported, std::vector<int32_t>& wide) {
    const double theta = batch.theta[q], apart = edge > kMostThin * theta ? edge / kMore : theta, kept = theta / apart;
    std::vector<Point> points;
    uint64_t noise = mix(batch.key[q] ^ 0x5851F42D4C957F2Du);
    const auto uniform = [&] { return (static_cast<double>(mix(noise += 0x9E3779B97F4A7C15u) >> 11) + 0.5) * 0x1p-53; };
    for (size_t i = 0; i < reported.hits.size(); ++i) {
        LaneHit& hit = reported.hits[i];
        const int32_t place = static_cast<int32_t>(i);
        if (reported.scored[i]) continue;
        if (hit.drawn < 0 && !(hit.gap < edge)) {  // what was reported for a point alone stays: who stays must not go by the draws
            wide.push_back(place);
            continue;
        }
        if (hit.drawn < 0) {  // back among the others
            reported.middle += hit.middle;
            reported.gap += hit.gap;
            hit.drawn = 0;
            for (double left = -apart * std::log(uniform()); left < hit.gap; left -= apart * std::log(uniform())) ++hit.drawn;
            for (int32_t d = 0; d < hit.drawn; ++d) points.push_back({uniform(), place});
            continue;
        }
        for (int32_t d = 0; d < hit.drawn; ++d) {
            const double mark = uniform();
            if (mark < kept) points.push_back({mark / kept, place});
        }
    }
    return points;
}

// Scores the classes of the points with marks in [from, to).
void draw_points(const Executor& e, const BatchState& batch, const Question& question, int q, const std::vector<Point>& points,
                 double from, double to, Reported& reported, Bet& bet) {
    std::vector<Scored> rows;
    std::vector<int32_t> taken, times;
    for (const Point& point : points) {
        if (point.mark < from || !(point.mark < to)) continue;
        if (taken.empty() || taken.back() != point.hit) {
            taken.push_back(point.hit);
            times.push_back(0);
            rows.push_back({reported.hits[point.hit].id, 0});
        }
        ++times.back();
    }
    score_narrow(e, batch, q, rows);
    reported.rows += static_cast<int64_t>(rows.size());
    for (size_t r = 0; r < rows.size(); ++r) {
        const LaneHit& hit = reported.hits[taken[r]];
        bet.add((std::exp(e.linked(rows[r].z) * question.beta - batch.shift[q]) - hit.middle) / hit.gap, times[r]);
    }
}

// The normaliser where its interval is too wide: what is widest is scored, of the rest the points with the least marks.
bool bet_reported(const Executor& e, const BatchState& batch, const Question& question, int q, Reported& reported, Interval& lse) {
    if (reported.unit != 1) return false;  // the pass knew nothing of what matters
    const double odds = 2 / question.delta;
    // Points fall where float32 puts them.
    const double guess = reported.exact + reported.middle, moved = 0x1p-24 * kFarthest * batch.theta[q] * static_cast<double>(e.vocab);
    const double aim = batch.aim[q] - 2 * moved / guess;
    if (!(aim > 0.5 * batch.aim[q])) return false;
    std::vector<int32_t> wide;
    const std::vector<Point> points = points_below(batch, q, aim * guess / (std::log(odds) + 0.8), reported, wide);
    if (static_cast<double>(wide.size()) > e.share * static_cast<double>(e.vocab)) return false;
    score_hits(e, batch, question, q, wide, reported, true);
    reported.middle = std::max(reported.middle, 0.0);
    reported.gap = std::max(reported.gap, 0.0);
    const double known = reported.exact + reported.middle, total = reported.gap * (1 + 0x1p-16) + 0x1p-16 * reported.middle;
    if (out_of_range(reported.exact, known) || !(total < 1e30)) return false;
    const double shift = batch.shift[q], fixed = batch.fixed[q], all = static_cast<double>(points.size());
    if (!(total > 0)) return lse = {shift + std::log(known), fixed}, true;
    Bet bet{known, total, aim, odds};
    double part = 0, wanted = kStart * draws_for(odds, aim * known / total, kScatter);
    for (;;) {  // those with marks below the part that is wanted, and not below the last one's
        const double next = wanted < all ? wanted / all : 1;
        draw_points(e, batch, question, q, points, part, next, reported, bet);
        part = next;
        if (bet.won()) return lse = {shift + std::log(bet.middle()), question.eps}, true;
        if (!(part < 1)) return false;
        wanted = std::max(1.05 * bet.wanted(), 1.1 * part * all + 16);
    }
}

// The normaliser of what was scored: no more than that of all. A shift in float32 may be so far above large exponents that nothing
// is left of them.
double least_of(const Executor& e, const BatchState& batch, const Question& question, int q, const Reported& reported, const Answer& answer) {
    if (reported.exact > 0) return reported.shift + std::log(reported.exact);
    double top = -kInf;
    for (const Scored& s : answer.best.empty() ? batch.sampled[q] : answer.best) top = std::max(top, e.linked(s.z) * question.beta);
    return top;
}

}  // namespace

bool resolve_reported(const Executor& e, const BatchState& batch, const Question& question, int q, Answer& answer) {
    Reported reported = report_of(batch, q);
    answer.best.clear();
    bool done = question.k == 0 || best_reported(e, batch, question, q, reported, answer);
    Interval lse{0, kInf};
    if (done && !wants_sums(question)) {
        lse.value = least_of(e, batch, question, q, reported, answer);
    } else if (done) {
        std::vector<int32_t> out;  // of the sums already
        for (size_t i = 0; i < reported.hits.size(); ++i)
            if (reported.hits[i].drawn < 0 && !reported.scored[i]) out.push_back(static_cast<int32_t>(i));
        const bool closed = question.eps < kInf || out.size() <= kMostClosed;  // nothing wide is left open, or a bet follows
        if (closed && !(question.eps < kInf)) score_hits(e, batch, question, q, out, reported);
        const double shift = reported.shift, off = float_error(e, shift, question.beta) + dot_error(e, &batch.look.hidden[q * e.dim]);
        const double slop = 0x1p-12 * (reported.middle + reported.gap) + 0x1p-18 * reported.lost, middle = std::max(0.0, reported.middle), known = reported.exact + middle;
        double low = reported.exact, high = known + std::max(0.0, reported.gap) + slop;
        if (middle > slop) low += (middle - slop) * std::exp(-std::max(0.0, reported.moved) * (1 + 0x1p-12) / (middle - slop));
        double error = kInf;
        if (closed && known > 0 && low > 0) error = std::max(std::log(high / known), std::log(known / low)) + off;
        lse = {shift + std::log(known), error < 20 ? error : kInf};
        if (!(error < 20)) lse.value = least_of(e, batch, question, q, reported, answer);
        if (question.eps < kInf && (!out.empty() || !(lse.error <= question.eps))) done = bet_reported(e, batch, question, q, reported, lse);
    }
    answer.rows += reported.rows;
    answer.bytes += static_cast<double>(reported.rows) * e.row_bytes();
    answer.lse = lse.value;
    answer.error = lse.error;
    answer.proved = answer.dense = false;
    answer.proved = done;
    return done;
}

}  // namespace headlong
