// The entropy of one query. With y the exponent of a class relative to the edge, c near the mean of y, and any u that bounds what a term
// can be off relatively,
//
//     H = log S - 1 - c - T / S,      S = sum e^y,      T = sum (y - 1 - c) e^y,      dH/dlog S = 1 + T / S = 0 where c is the mean of y
//     |(y' - 1 - c) e^y' - (y - 1 - c) e^y|  <=  e^y u (|y - c| + u / 2),      |e^y' - e^y|  <=  e^y u,      |y' - y| <= log(1 + u)
//
// so T decides, and S need only be known roughly. Both are exact where classes were scored; elsewhere they are sums at the estimates, and
// gaps, which are those of T: a class is drawn in proportion to its gap, and one draw bets on both. The first points fall during the scan,
// when c is not known yet, by weights with a guess of it: a point of a Poisson process keeps its place where weights are others, if its
// mark is multiplied by the ratio of the weights.
#include <algorithm>
#include <cmath>

#include "codes/betting.h"
#include "codes/constants.h"
#include "codes/draw_points.h"
#include "codes/query_state.h"

namespace headlong {
namespace {

constexpr double kMassError = 0x1p-13;  // of an exponent: a mass is off by 2^-14 of it, and its logarithm stands for it
constexpr double kWeightUp = 1 + 0x1p-10;  // of a weight: exponents of float32 masses, in each of its two forms

struct Ends {
    double low, high;
};

// What log S - T / S can be: for a T it is least where S = -T, and largest at an end of S; it falls with T.
Ends entropies(Ends s, Ends t) {
    const auto value = [](double sum, double own) { return std::log(sum) - own / sum; };
    const double bottom = std::min(s.high, std::max(s.low, -t.high));
    return {value(bottom, t.high), std::max(value(s.low, t.low), value(s.high, t.low))};
}

struct Marked {
    DrawnClass of;
    double mark;
};

}  // namespace

bool entropy_of_codes(const QueryState& state, const Proposal& proposal, double delta) {
    const Executor& e = state.e;
    const double beta = state.question.beta, eps = state.question.eps;
    Answer& answer = state.answer;
    const int64_t tiles = state.codes.count;
    if (static_cast<int64_t>(proposal.heads.size()) > state.most_scored()) return false;
    const double shift = state.exponent.at(state.query, proposal.edge);
    const double logit = dot_error(e, state.hidden) * beta;
    std::vector<Scored> rows;
    const auto exponent = [&](double z) { return state.exponent.above(z, state.query, proposal.edge); };
    for (const Proposal::Head& head : proposal.heads) rows.push_back({head.id, 0});
    state.score_asked(rows);
    double exact = 0, first = 0;  // sums of e^y and of y e^y
    for (const Scored& row : rows) {
        const double y = exponent(row.z);
        exact += std::exp(y), first += y * std::exp(y);
    }
    double mass = 0, moment = 0, plain = 0;
    for (int64_t t = 0; t < tiles; ++t) {
        mass += proposal.sums[t].mass;
        if (!(proposal.spreads[t].shared > 0)) continue;
        moment += proposal.spreads[t].moment;
        plain += static_cast<double>(proposal.sums[t].off.part) * proposal.spreads[t].shared;
    }
    const double known = exact + mass;
    if (!(known > 0) || !std::isfinite(known) || !std::isfinite(plain)) return false;
    const double c = (first + moment) / known, lift = std::max(1.0, std::fabs(c)) * kWeightUp;  // at least 1: gaps are those of S, too
    const double about = -known;  // T at the estimates, by the choice of c
    std::vector<double> before(tiles + 1);
    for (int64_t t = 0; t < tiles; ++t) {
        const Stretch& off = proposal.sums[t].off;
        const Proposal::Spread& own = proposal.spreads[t];
        before[t + 1] = before[t] + (own.shared > 0 ? off.part * ((lift + 0.5 * off.most()) * own.shared + own.leaning) : 0);
    }
    const double gaps = before[tiles], entropy = std::log(known) - c;
    if (!std::isfinite(gaps) || !std::isfinite(entropy)) return false;
    const double fixed = (1 + 2 * std::fabs(entropy)) * logit + kSumError + (kSumError * (std::fabs(1 + c) * mass - moment) + kMassError * mass) / known +
                         0x1p-50 * (std::fabs(shift) + 64) + state.too_large() * (2 - 2 * kFloor + 2 * std::fabs(c)) / known;
    const double aim = eps - fixed;
    if (!(aim > 0)) return false;
    // The answer, if it is within what was asked for.
    const auto within = [&](Ends s, Ends t) {
        const Ends found = entropies(s, t);
        const double half = 0.5 * (found.high - found.low), middle = 0.5 * (found.low + found.high) - 1 - c;
        if (!(half <= aim)) return false;
        answer.value = std::max(0.0, middle), answer.error = std::min(half + fixed, eps);
        answer.lse = std::log(0.5 * (s.low + s.high)) + shift;
        return true;
    };
    const double least = std::max(exact * (1 - kSumError), known - plain);
    if (least > 0 && within({least, known + plain}, {about - gaps, about + gaps})) return true;
    if (!(delta > 0)) return false;

    const double odds = 2 / delta, guess = proposal.rate.lift;
    double found = 0, for_t = kForDecider;
    for (const Proposal::Head& head : proposal.heads) found += head.mass;
    // The points of the scan with their marks by these weights, as far as none is missing: those with marks below n / gaps are n draws, about.
    const double complete = proposal.rate.at(proposal.sure + found) * std::min(1.0, guess / lift);
    double draws = kFirstShare * draws_for(odds, for_t * aim * known / gaps, kExpectedSpread);
    const double limit = std::min(complete, kMostTaken * draws / gaps);
    std::vector<Marked> points;
    for (const Proposal::Point& point : proposal.points) {
        if (!(point.mark < limit * std::max(1.0, lift / guess))) continue;
        const double y = std::log(static_cast<double>(point.mass)), part = 0.5 * proposal.sums[point.id / kTile].off.most();
        const double ratio = (lift + part - y) / (guess + part - y), mark = point.mark / ratio;
        if (mark < limit) points.push_back({{point.id, 1, point.mass, point.gap * ratio}, mark});
    }
    Drawn of_t, of_s;  // X of each draw
    double taken = 0;  // marks up to there
    auto next = points.begin();
    for (uint32_t round = 0; round < kMostRounds; ++round) {
        if (!(static_cast<double>(answer.rows) + draws < static_cast<double>(state.most_scored()))) return false;
        std::vector<DrawnClass> classes;
        if (taken < limit) {
            taken = std::min(limit, taken + draws / gaps);
            const auto first = next;
            next = std::partition(next, points.end(), [&](const Marked& one) { return one.mark < taken; });
            for (auto one = first; one < next; ++one) classes.push_back(one->of);
            std::sort(classes.begin(), classes.end(), [](const DrawnClass& a, const DrawnClass& b) { return a.id < b.id; });
        } else {
            draws = std::max(draws, kScanAgain * static_cast<double>(of_t.each.size()));
            classes = drawn_at(state, proposal, lift, before, sorted_points(*e.kernels, proposal.key, round + 1, static_cast<int64_t>(draws) + kLeastDraws, gaps));
        }
        rows.clear();
        for (const DrawnClass& one : classes) rows.push_back({one.id, 0});
        state.score_asked(rows);
        for (size_t i = 0; i < rows.size(); ++i) {
            const DrawnClass& one = classes[i];
            const double y = exponent(rows[i].z), term = std::exp(y);
            of_t.add(((y - 1 - c) * term - (std::log(one.mass) - 1 - c) * one.mass) / one.gap, one.times);
            of_s.add((term - one.mass) / one.gap, one.times);
        }
        const double count = of_t.count(), middle = known + gaps * of_s.mean();
        const double off_t = for_t * aim * middle / gaps, off_s = 0.5 * std::sqrt((1 - kForDecider) * aim) * middle / gaps, wanted = of_t.wanted(odds, off_t);
        if (count > kEarly * wanted && middle > 0 && refuted(of_t.each, odds, of_t.mean() + off_t, of_t.mean() - off_t) &&
            refuted(of_s.each, odds, of_s.mean() + off_s, of_s.mean() - off_s)) {
            const double t = about + gaps * of_t.mean();
            if (within({middle - gaps * off_s, middle + gaps * off_s}, {t - gaps * off_t, t + gaps * off_t})) return true;
            for_t *= 0.8;  // S is so uncertain, or so far from its estimates, that it takes more than was set apart for it
        }
        draws = std::max(kEarly * wanted - count, kBeforeNextLook * count + kLeastDraws);
    }
    return false;
}

}  // namespace headlong
