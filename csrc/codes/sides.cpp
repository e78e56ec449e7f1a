// Whether a class is in the nucleus of top_p: whether those that come before it have less than that share of all mass,
//
//     sum over z_c > z of exp(f(z_c))  <  top_p * sum over all c of exp(f(z_c))
//
// First by both ends of every class's interval, from the estimates of one scan and the best classes, whose logits are known: where every
// interval is within r nats the odds of that share are within exp(2 r). Then, where an answer may fail, by a bet on the sign of
//
//     sum of v  =  sum over the best, exact + sum b + (sum u) E[X],      v = exp(f(z_c)) ([z_c > z] - top_p),      X = (v - b) / u in [-1, 1]
//
// with u how far v can be off b, of a class that is drawn in proportion to u (codes/betting.h).
#include <algorithm>
#include <cmath>

#include "codes/betting.h"
#include "codes/constants.h"
#include "codes/query_state.h"

namespace headlong {
namespace {

// Of classes with these masses and gaps: both ends of what they have. The lower ends are masses^2 / (masses + gaps), which is convex.
struct BothEnds {
    double low = 0, high = 0;
    void add(double mass, double shared, double part) {
        const double gap = shared > 0 ? shared * part : 0;  // there may be one of masses that float32 has lost beside another
        low += mass > 0 && gap < kInf ? mass * mass / (mass + gap) : 0;
        high += mass + gap;
    }
};

double sum_of(const double (&of)[kTile]) {
    double part[4] = {};  // side by side: each waits for its last
    for (int c = 0; c < kTile; c += 4)
        for (int i = 0; i < 4; ++i) part[i] += of[c + i];
    return part[0] + part[1] + (part[2] + part[3]);
}

double share_of(double odds) { return odds < kInf ? odds / (1 + odds) : 1; }

// The classes of one query before and behind one of them.
class Sides {
  public:
    Sides(const QueryState& state, const ScanRadii& wide, const float* estimates, const Scored& x)
        : state_(state), codes_(state.codes), best_(state.answer.best), wide_(wide), estimates_(estimates), x_(x), top_p_(state.question.rules[state.q].top_p),
          among_(!state.order(best_.back(), x)), heads_(codes_.count) {
        const CodeQuery& query = state.query;
        const double off = state.order.around(x.z);
        reach_ = floor_of(x.z - off, query.add) - wide.constant[0], above_ = -floor_of(-x.z - off, -query.add) + wide.constant[0];
        // No class that is not among the best is far above the first of them.
        const float first = state.exponent.affine ? static_cast<float>(best_[0].z - query.add) : static_cast<float>(state.e.linked(best_[0].z));
        edge_ = first + 2 / state.exponent.scale + std::fabs(first) * 0x1p-20f;
        shift_ = state.exponent.at(query, edge_);
        slop_ = dot_error(state.e, state.hidden) * state.question.beta + 2 * kSumError + 0x1p-50 * (std::fabs(shift_) + 64);
        for (const Scored& one : best_) heads_[one.id / kTile] |= uint64_t{1} << one.id % kTile;
    }

    double top_p() const { return top_p_; }

    // By intervals, which say how much mass there is at all, too. False where they say nothing.
    bool weigh(Interval& share) {
        if (!(std::fabs(edge_) < 1e30f)) return false;
        BothEnds sure, open, behind;
        for (const Scored& one : best_) {
            const double own = mass_of(one);
            BothEnds& to = state_.order(one, x_) ? sure : behind;
            to.low += own, to.high += own;
        }
        double lost = 0;  // of masses of some classes that are what is left of all of a tile
        for (int64_t t = 0; t < codes_.count; ++t) {
            Tile tile;
            if (!read(t, tile)) return false;
            double of[2] = {}, between[2] = {};
            each_bit(tile.before | tile.between, [&](int c) {
                double* to = tile.before >> c & 1 ? of : between;
                to[0] += tile.masses.mass[c], to[1] += tile.masses.shared[c];
            });
            const Proposal::Sum& sum = tile.masses.sum;
            sure.add(of[0], of[1], sum.off.part);
            open.add(between[0], between[1], sum.off.part);
            behind.add(std::max(0.0, sum.mass - of[0] - between[0]), std::max(0.0, sum.shared - of[1] - between[1]) + sum.shared * 0x1p-18, sum.off.part);
            lost += sum.mass * 0x1p-18;
        }
        behind.low = std::max(0.0, behind.low - lost), behind.high += lost;
        const double floors = state_.too_large(), least = std::max(0.0, sure.low - floors) * std::exp(-2 * slop_) / (open.high + behind.high);
        const double largest = (sure.high + open.high) * std::exp(2 * slop_) / std::max(0.0, behind.low - floors);
        const double bottom = std::isfinite(least) ? share_of(least) : 0, top = largest >= 0 ? share_of(largest) : 1;
        share = {0.5 * (bottom + top), 0.5 * (top - bottom)};
        most_ = sure.high + open.high + behind.high;
        const double low = std::log(sure.low + open.low + behind.low - floors) - slop_, high = std::log(most_) + slop_;
        Answer& answer = state_.answer;
        if (!std::isfinite(answer.error) && std::isfinite(low) && std::isfinite(high))
            answer.lse = 0.5 * (low + high) + shift_, answer.error = 0.5 * (high - low) + 0x1p-50 * std::fabs(answer.lse);
        return true;
    }

    // By a bet: below 0 where x is in the nucleus, above 0 where it is not, 0 where that stays open.
    int bet(const NucleusBet& on) const {
        double known = 0, b[kTile], u[kTile];
        for (const Scored& one : best_) known += value(one);
        std::vector<double> before(codes_.count + 1);
        for (int64_t t = 0; t < codes_.count; ++t) {
            spread(t, b, u);
            known += sum_of(b), before[t + 1] = before[t] + sum_of(u);
        }
        const double gaps = before[codes_.count], slack = state_.too_large() + 4 * slop_ * most_, odds = 2 / on.delta;
        if (!(gaps > 0) || !std::isfinite(gaps) || !std::isfinite(slack)) return 0;
        Drawn drawn;
        double draws = kFirstPoints, scored = 0;
        for (uint32_t round = 0; scored + draws < static_cast<double>(state_.most_scored()); ++round) {
            const std::vector<double> points = sorted_points(*state_.e.kernels, on.key, round, static_cast<int64_t>(draws), gaps);
            const std::vector<DrawnClass> classes = classes_at(points, before, [&](int64_t tile, double* mass, double* gap) { spread(tile, mass, gap); });
            std::vector<Scored> rows;
            for (const DrawnClass& one : classes) rows.push_back({one.id, 0});
            state_.score(rows);
            scored += static_cast<double>(rows.size());
            for (size_t i = 0; i < rows.size(); ++i) drawn.add((value(rows[i]) - classes[i].mass) / classes[i].gap, classes[i].times);
            if (refuted(drawn.each, odds, (-slack - known) / gaps, -2)) return -1;
            if (refuted(drawn.each, odds, 2, (slack - known) / gaps)) return 1;
            const double count = drawn.count(), far = std::fabs(drawn.sum / count + known / gaps);
            draws = std::max(kBeyondWanted * drawn.wanted(odds, far) - count, kLeastDraws + kMoreDraws * count);
        }
        return 0;
    }

  private:
    struct Tile {
        TileMasses masses;
        uint64_t rest = 0, before = 0, between = 0;  // of those that are not among the best: all, who surely come before x, who may
    };

    double mass_of(const Scored& one) const { return std::exp(state_.exponent.above(one.z, state_.query, edge_)); }
    double value(const Scored& one) const { return mass_of(one) * ((state_.order(one, x_) ? 1 : 0) - top_p_); }

    // False where a class is beyond the edge.
    bool read(int64_t t, Tile& tile) const {
        alignas(64) float linked[kTile], ends[kTile], radii[kMostLanes], part[kMostLanes], bend[kMostLanes];
        const float *est = estimates_ + t * kTile, *shares = codes_.shares(t);
        codes_.scan->radii(codes_.tile(t), codes_.layout, wide_, state_.exponent.slope, radii, part, bend);
        tile.rest = state_.allowed(t) & ~heads_[t];
        const TileView view{state_.exponent.of(est, state_.query, linked), shares, state_.exponent.scale, {part[0], bend[0]}, tile.rest};
        if (tile.masses.take(*codes_.scan, view, edge_, 0) != 0) return false;
        // Where x is among the best, no others come before it.
        const uint64_t reaching = among_ ? 0 : tile.rest & codes_.scan->reach(est, shares, radii[0], reach_, ends);
        tile.before = reaching == 0 ? 0 : reaching & codes_.scan->reach(est, shares, -radii[0], above_, ends);
        tile.between = reaching & ~tile.before;
        return true;
    }

    // b and u of the classes of a tile. Whose interval has z in it is where its estimate is: few are on the other side.
    void spread(int64_t t, double* b, double* u) const {
        Tile tile;
        read(t, tile);
        const double part = tile.masses.sum.off.part;
        const float *mass = tile.masses.mass, *shared = tile.masses.shared;
        for (int c = 0; c < kTile; ++c) b[c] = -top_p_ * mass[c], u[c] = top_p_ * (shared[c] * part);  // zeros of classes that are not `rest`
        each_bit(tile.before | tile.between, [&](int c) {
            const double gap = shared[c] * part;
            if (tile.before >> c & 1) b[c] = (1 - top_p_) * mass[c], u[c] = (1 - top_p_) * gap;
            else b[c] = ((static_cast<double>(estimates_[t * kTile + c]) + state_.query.add > x_.z ? 1 : 0) - top_p_) * mass[c], u[c] = mass[c] + gap;
        });
    }

    const QueryState& state_;
    const Codes& codes_;
    const std::vector<Scored>& best_;
    const ScanRadii& wide_;
    const float* estimates_;
    Scored x_;
    double top_p_;
    bool among_;  // the best
    float reach_, above_, edge_;
    double shift_, slop_;  // what roundings may change relatively
    double most_ = kInf;   // of the mass of all classes
    std::vector<uint64_t> heads_;
};

}  // namespace

int side_of(const QueryState& state, const ScanRadii& wide, const float* estimates, const Scored& x, const NucleusBet& on) {
    Sides sides(state, wide, estimates, x);
    Interval share{};
    if (!sides.weigh(share)) return 0;
    if (share.value + share.error < sides.top_p() * kSurely) return -1;
    if (share.value - share.error > sides.top_p() / kSurely) return 1;
    return on.delta > 0 ? sides.bet(on) : 0;
}

}  // namespace headlong
