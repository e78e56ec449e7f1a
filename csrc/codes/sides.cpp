// How much of the mass the classes have that come before a logit z:
//
//     sum over z_c > z of exp(f(z_c)) / sum over all c of exp(f(z_c))
//
// between both ends of every class's interval, from the estimates of one scan and the best classes, whose logits are known. Where every
// interval is within r nats the odds of that share are within exp(2 r): near 1, where nuclei end, that decides for most logits.
#include <algorithm>
#include <cmath>

#include "codes/pass.h"
#include "executor/verbs.h"

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

}  // namespace

void sides_of_codes(const Codes& codes, const PreparedCodes& all, int64_t q, const Question& question, const float* estimates, double delta, Answer& answer) {
    const Executor& e = *codes.rows;
    const CodeQuery& query = all.queries[q];
    const std::vector<Scored>& best = answer.best;
    if (best.empty() || static_cast<int64_t>(best.size()) < question.k || answer.draws.empty() || !std::isfinite(best.back().z)) return;
    // Nothing is open where every draw is among the best and these alone outweigh what comes before it.
    double floor = kInf, ahead = 0, known = 0;
    for (const Draw& one : answer.draws) floor = std::min(floor, one.z);
    const auto mass_of = [&](const Scored& one) { return std::exp((e.linked(one.z) - e.linked(best[0].z)) * question.beta); };
    for (const Scored& one : best) known += mass_of(one), ahead += one.z > floor ? mass_of(one) : 0;
    if (!draws_beyond(answer) && ahead < question.rules[q].top_p * known * kSurely) return;
    const double off = TrueOrder(*e.kernels, e, query.hidden).around(floor);
    const Exponent exponent(codes, question.beta);
    ScanRadii wide = radii_of(codes, &query, 1, kappa_of(2.0 * static_cast<double>(e.vocab), delta));
    wide.constant[0] += static_cast<float>(exponent.lost(query));
    const float reach = floor_of(floor - off, query.add), above = -floor_of(-floor - off, -query.add);
    std::vector<uint64_t> heads(codes.count);
    for (const Scored& one : best) heads[one.id / kTile] |= uint64_t{1} << one.id % kTile;
    // No class that is not among the best is far above the first of them.
    const float first = exponent.affine ? static_cast<float>(best[0].z - query.add) : static_cast<float>(e.linked(best[0].z));
    const float edge = first + 2 / exponent.scale + std::fabs(first) * 0x1p-20f;
    if (!(std::fabs(edge) < 1e30f)) return;
    const double shift = exponent.at(query, edge);
    BothEnds sure, open, behind;
    for (const Scored& one : best) {
        const double own = std::exp(exponent.above(one.z, query, edge));
        BothEnds& to = one.z > floor + off ? sure : one.z >= floor - off ? open : behind;
        to.low += own, to.high += own;
    }
    alignas(64) float linked[kTile], mass[kTile], shared[kTile], ends[kTile], radii[kMostLanes], part[kMostLanes], bend[kMostLanes];
    double lost = 0;  // of masses of some classes that are what is left of all of a tile
    for (int64_t t = 0; t < codes.count; ++t) {
        const float *est = estimates + t * kTile, *shares = codes.shares(t);
        const uint64_t rest = allowed_in(question, q, e.vocab, t) & ~heads[t];
        float sums[2];
        codes.scan->radii(codes.tile(t), codes.layout, wide, exponent.slope, radii, part, bend);
        if (codes.scan->masses(exponent.of(est, query, linked), shares, exponent.scale, edge, bend[0], rest, mass, shared, sums) != 0) return;
        const uint64_t reaching = rest & codes.scan->reach(est, shares, radii[0], reach - wide.constant[0], ends);
        const uint64_t before = reaching == 0 ? 0 : reaching & codes.scan->reach(est, shares, -radii[0], above + wide.constant[0], ends);
        double of[2] = {}, between[2] = {};
        for (uint64_t left = reaching; left != 0; left &= left - 1) {
            const int c = __builtin_ctzll(left);
            double* to = before >> c & 1 ? of : between;
            to[0] += mass[c], to[1] += shared[c];
        }
        sure.add(of[0], of[1], part[0]);
        open.add(between[0], between[1], part[0]);
        behind.add(std::max(0.0, sums[0] - of[0] - between[0]), std::max(0.0, sums[1] - of[1] - between[1]) + sums[1] * 0x1p-18, part[0]);
        lost += sums[0] * 0x1p-18;
    }
    behind.low = std::max(0.0, behind.low - lost), behind.high += lost;
    // What roundings may change, and masses that were put at the floor.
    const double slop = dot_error(e, query.hidden) * question.beta + 2 * kSumError + 0x1p-50 * (std::fabs(shift) + 64), floors = too_large(codes);
    const auto share = [](double odds) { return odds < kInf ? odds / (1 + odds) : 1; };
    const double least = std::max(0.0, sure.low - floors) * std::exp(-2 * slop) / (open.high + behind.high);
    const double most = (sure.high + open.high) * std::exp(2 * slop) / std::max(0.0, behind.low - floors);
    if (std::isfinite(least)) answer.least_ahead = share(least);
    if (most >= 0) answer.most_ahead = share(most);
    const double low = std::log(sure.low + open.low + behind.low - floors) - slop, high = std::log(sure.high + open.high + behind.high) + slop;
    if (std::isfinite(answer.error) || !std::isfinite(low) || !std::isfinite(high)) return;
    answer.lse = 0.5 * (low + high) + shift, answer.error = 0.5 * (high - low) + 0x1p-50 * std::fabs(answer.lse);
}

}  // namespace headlong
