// Whether a class is in the nucleus of top_p: whether those that come before it have less than that share of all mass,
//
//     sum over z_c > z of exp(f(z_c))  <  top_p * sum over all c of exp(f(z_c))
//
// First by both ends of every class's interval, from the estimates of one scan and the best classes, whose logits are known: where every
// interval is within r nats the odds of that share are within exp(2 r). Then, where an answer may fail, by a bet on the sign of
//
//     sum of v  =  sum over the best, exact + sum b + (sum u) E[X],      v = exp(f(z_c)) ([z_c > z] - top_p),      X = (v - b) / u in [-1, 1]
//
// with u how far v can be off b, of a class that is drawn in proportion to u (normaliser/betting.h).
#include <algorithm>
#include <cmath>

#include "codes/pass.h"
#include "executor/verbs.h"
#include "normaliser/draw_points.h"

namespace headlong {
namespace {

constexpr uint64_t kPurpose = 0x6E75636C65757321;  // of these bets' points, among all that is drawn for a query
constexpr double kFirstPoints = 128, kBeyondWanted = 1.1;

// Of classes with these masses and gaps: both ends of what they have. The lower ends are masses^2 / (masses + gaps), which is convex.
struct BothEnds {
    double low = 0, high = 0;
    void add(double mass, double shared, double part) {
        const double gap = shared > 0 ? shared * part : 0;  // there may be one of masses that float32 has lost beside another
        low += mass > 0 && gap < kInf ? mass * mass / (mass + gap) : 0;
        high += mass + gap;
    }
};

double share_of(double odds) { return odds < kInf ? odds / (1 + odds) : 1; }

// The classes of one query before and behind one of them.
struct Sides {
    const Codes& codes;
    const PreparedCodes& all;
    int64_t q;
    const Question& question;
    const ScanRadii& wide;
    const float* estimates;
    const Scored& x;
    const std::vector<Scored>& best;

    const Executor& e = *codes.rows;
    const CodeQuery& query = all.queries[q];
    const double top_p = question.rules[q].top_p;
    const TrueOrder order{*e.kernels, e, query.hidden};
    const Exponent exponent{codes, question.beta};
    const bool among = !order(best.back(), x);  // the best: no others come before it
    const double off = order.around(x.z);
    const float reach = floor_of(x.z - off, query.add), above = -floor_of(-x.z - off, -query.add);
    // No class that is not among the best is far above the first of them.
    const float first = exponent.affine ? static_cast<float>(best[0].z - query.add) : static_cast<float>(e.linked(best[0].z));
    const float edge = first + 2 / exponent.scale + std::fabs(first) * 0x1p-20f;
    const double shift = exponent.at(query, edge);
    // What roundings may change relatively, and masses that were put at the floor.
    const double slop = dot_error(e, query.hidden) * question.beta + 2 * kSumError + 0x1p-50 * (std::fabs(shift) + 64), floors = too_large(codes);
    std::vector<uint64_t> heads = std::vector<uint64_t>(codes.count);
    double most = kInf;  // of the mass of all classes

    struct Tile {
        alignas(64) float mass[kTile], shared[kTile];
        float part, sums[2];
        uint64_t rest, before, between;  // of those that are not among the best: all, who surely come before x, who may
        bool sound;
    };

    double mass_of(const Scored& one) const { return std::exp(exponent.above(one.z, query, edge)); }

    void read(int64_t t, Tile& tile) const {
        alignas(64) float linked[kTile], ends[kTile], radii[kMostLanes], part[kMostLanes], bend[kMostLanes];
        const float *est = estimates + t * kTile, *shares = codes.shares(t);
        codes.scan->radii(codes.tile(t), codes.layout, wide, exponent.slope, radii, part, bend);
        tile.part = part[0];
        tile.rest = allowed_in(question, q, e.vocab, t) & ~heads[t];
        tile.sound = codes.scan->masses(exponent.of(est, query, linked), shares, exponent.scale, edge, bend[0], tile.rest, tile.mass, tile.shared, tile.sums) == 0;
        const uint64_t reaching = among ? 0 : tile.rest & codes.scan->reach(est, shares, radii[0], reach - wide.constant[0], ends);
        tile.before = reaching == 0 ? 0 : reaching & codes.scan->reach(est, shares, -radii[0], above + wide.constant[0], ends);
        tile.between = reaching & ~tile.before;
    }

    // By intervals, which say how much mass there is at all, too. False where they say nothing.
    bool weigh(Interval& share, Answer& answer) {
        for (const Scored& one : best) heads[one.id / kTile] |= uint64_t{1} << one.id % kTile;
        if (!(std::fabs(edge) < 1e30f)) return false;
        BothEnds sure, open, behind;
        for (const Scored& one : best) {
            const double own = mass_of(one);
            BothEnds& to = order(one, x) ? sure : behind;
            to.low += own, to.high += own;
        }
        double lost = 0;  // of masses of some classes that are what is left of all of a tile
        for (int64_t t = 0; t < codes.count; ++t) {
            Tile tile;
            read(t, tile);
            if (!tile.sound) return false;
            double of[2] = {}, between[2] = {};
            for (uint64_t left = tile.before | tile.between; left != 0; left &= left - 1) {
                const int c = __builtin_ctzll(left);
                double* to = tile.before >> c & 1 ? of : between;
                to[0] += tile.mass[c], to[1] += tile.shared[c];
            }
            const float* sums = tile.sums;
            sure.add(of[0], of[1], tile.part);
            open.add(between[0], between[1], tile.part);
            behind.add(std::max(0.0, sums[0] - of[0] - between[0]), std::max(0.0, sums[1] - of[1] - between[1]) + sums[1] * 0x1p-18, tile.part);
            lost += sums[0] * 0x1p-18;
        }
        behind.low = std::max(0.0, behind.low - lost), behind.high += lost;
        const double least = std::max(0.0, sure.low - floors) * std::exp(-2 * slop) / (open.high + behind.high);
        const double largest = (sure.high + open.high) * std::exp(2 * slop) / std::max(0.0, behind.low - floors);
        const double bottom = std::isfinite(least) ? share_of(least) : 0, top = largest >= 0 ? share_of(largest) : 1;
        share = {0.5 * (bottom + top), 0.5 * (top - bottom)};
        most = sure.high + open.high + behind.high;
        const double low = std::log(sure.low + open.low + behind.low - floors) - slop, high = std::log(most) + slop;
        if (!std::isfinite(answer.error) && std::isfinite(low) && std::isfinite(high))
            answer.lse = 0.5 * (low + high) + shift, answer.error = 0.5 * (high - low) + 0x1p-50 * std::fabs(answer.lse);
        return true;
    }

    // b and u of the classes of a tile. Whose interval has z in it is where its estimate is: few are on the other side.
    void spread(int64_t t, double* b, double* u) const {
        Tile tile;
        read(t, tile);
        for (int c = 0; c < kTile; ++c) {
            const double mass = tile.mass[c], gap = static_cast<double>(tile.shared[c]) * tile.part;
            if ((tile.rest >> c & 1) == 0) b[c] = u[c] = 0;
            else if (tile.between >> c & 1) b[c] = ((static_cast<double>(estimates[t * kTile + c]) + query.add > x.z ? 1 : 0) - top_p) * mass, u[c] = mass + gap;
            else if (tile.before >> c & 1) b[c] = (1 - top_p) * mass, u[c] = (1 - top_p) * gap;
            else b[c] = -top_p * mass, u[c] = top_p * gap;
        }
    }

    double value(const Scored& one) const { return mass_of(one) * ((order(one, x) ? 1 : 0) - top_p); }

    // By a bet that is lost with probability `delta`: below 0 where x is in the nucleus, above 0 where it is not, 0 where that stays open.
    int bet(double delta, int threads, Answer& answer) const {
        double known = 0, b[kTile], u[kTile];
        for (const Scored& one : best) known += value(one);
        std::vector<double> before(codes.count + 1);
        for (int64_t t = 0; t < codes.count; ++t) {
            spread(t, b, u);
            before[t + 1] = before[t];
            for (int c = 0; c < kTile; ++c) known += b[c], before[t + 1] += u[c];
        }
        const double gaps = before[codes.count], slack = floors + 4 * slop * most, odds = 2 / delta;
        if (!(gaps > 0) || !std::isfinite(gaps) || !std::isfinite(slack)) return 0;
        const uint64_t key = mix(key_of(query.hidden, e.dim, question.seed) ^ kPurpose) + static_cast<uint64_t>(x.id);
        std::vector<double> drawn;
        double sum = 0, squares = 0, draws = kFirstPoints, scored = 0;
        for (uint32_t round = 0; scored + draws < static_cast<double>(most_scored(codes)); ++round) {
            std::vector<CodeDrawn> found;
            int64_t tile = -1, next = 0;
            int place = 0;
            double upto = 0;
            for (double point : sorted_points(*e.kernels, key, round, static_cast<int64_t>(draws), gaps)) {
                while (next + 1 < codes.count && before[next + 1] <= point) ++next;
                if (next != tile) tile = next, place = 0, upto = before[tile], spread(tile, b, u);
                int last = -1;  // with a gap, where roundings lead beyond the tile
                for (int i = place; i < kTile; ++i) {
                    if (!(u[i] > 0)) continue;
                    last = i;
                    if (point < upto + u[i]) break;
                    int more = i + 1;
                    while (more < kTile && !(u[more] > 0)) ++more;
                    if (more == kTile) break;
                    upto += u[i], place = more;
                }
                if (last < 0) continue;
                const auto id = static_cast<int32_t>(tile * kTile + last);
                if (!found.empty() && found.back().id == id) ++found.back().times;
                else found.push_back({id, 1, b[last], u[last]});
            }
            std::vector<Scored> rows;
            for (const CodeDrawn& one : found) rows.push_back({one.id, 0});
            score(e, query.hidden, rows, threads);
            answer.rows += static_cast<int64_t>(rows.size()), scored += static_cast<double>(rows.size());
            for (size_t i = 0; i < rows.size(); ++i) {
                const double off_by = (value(rows[i]) - found[i].mass) / found[i].gap;
                drawn.insert(drawn.end(), found[i].times, off_by);
                sum += off_by * found[i].times, squares += off_by * off_by * found[i].times;
            }
            if (refuted(drawn, odds, (-slack - known) / gaps, -2)) return -1;
            if (refuted(drawn, odds, 2, (slack - known) / gaps)) return 1;
            const double count = std::max<double>(1, static_cast<double>(drawn.size())), far = std::fabs(sum / count + known / gaps);
            draws = std::max(kBeyondWanted * draws_for(odds, far, squares / count) - count, 16 + 0.2 * count);
        }
        return 0;
    }
};

}  // namespace

int side_of(const Codes& codes, const PreparedCodes& all, int64_t q, const Question& question, const ScanRadii& wide, const float* estimates, double delta,
            const Scored& x, int threads, Answer& answer) {
    Sides sides{codes, all, q, question, wide, estimates, x, answer.best};
    Interval share{};
    if (!sides.weigh(share, answer)) return 0;
    if (share.value + share.error < sides.top_p * kSurely) return -1;
    if (share.value - share.error > sides.top_p / kSurely) return 1;
    return delta > 0 ? sides.bet(delta, threads, answer) : 0;
}

}  // namespace headlong
