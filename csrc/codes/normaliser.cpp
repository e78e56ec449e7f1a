// The normaliser of one query: exact where classes were scored, intervals elsewhere.
//
//     sum of terms = sum over heads, exact + sum b + (sum u) E[X],      X = (term - b) / u in [-1, 1] of a class drawn in proportion to u
//
// b is the mass at the estimate and u how far a term can be off it. Intervals may be close enough as they are; else rows are drawn until a
// bet against every other value is won (codes/betting.h).
#include <algorithm>
#include <cmath>

#include "codes/betting.h"
#include "codes/constants.h"
#include "codes/draw_points.h"
#include "codes/query_state.h"

namespace headlong {

std::vector<DrawnClass> drawn_at(const QueryState& state, const Proposal& proposal, double lift, const std::vector<double>& before, const std::vector<double>& points) {
    const Codes& codes = state.codes;
    const CodeGroup alone = state.prepared.alone(codes, state.q);
    alignas(64) float est[kTile], linked[kTile];
    return classes_at(points, before, [&](int64_t tile, double* mass, double* gap) {
        codes.scan->estimate(codes.tile(tile), codes.layout, alone.passes.data(), static_cast<int>(alone.passes.size()), 1, 0, est);
        const Stretch off = proposal.sums[tile].off;
        TileMasses own;
        own.take(*codes.scan, {state.exponent.of(est, state.query, linked), codes.shares(tile), state.exponent.scale, off, state.allowed(tile)}, proposal.edge, lift);
        for (int c = 0; c < kTile; ++c) mass[c] = own.mass[c], gap[c] = static_cast<double>(off.part) * own.shared[c];
    });
}

bool normaliser_of_codes(const QueryState& state, const Proposal& proposal, double delta) {
    const Executor& e = state.e;
    const Question& question = state.question;
    Answer& answer = state.answer;
    const int64_t tiles = state.codes.count;
    if (static_cast<int64_t>(proposal.heads.size()) > state.most_scored()) return false;
    const double shift = state.exponent.at(state.query, proposal.edge);
    double fixed = dot_error(e, state.hidden) * question.beta + kSumError + 0x1p-50 * (std::fabs(shift) + 64);
    if (!(question.eps > fixed)) return false;
    const auto term = [&](double z) { return std::exp(state.exponent.above(z, state.query, proposal.edge)); };
    std::vector<Scored> rows;
    for (const Proposal::Head& head : proposal.heads) rows.push_back({head.id, 0});
    state.score_asked(rows);
    double exact = 0;
    for (const Scored& row : rows) exact += term(row.z);
    std::vector<double> before(tiles + 1);
    double mass = 0;
    for (int64_t t = 0; t < tiles; ++t) {
        mass += proposal.sums[t].mass;
        before[t + 1] = before[t] + proposal.sums[t].gap();
    }
    const double gaps = before[tiles], known = exact + mass;
    const auto finish = [&](double sum, double error) {
        answer.lse = std::log(sum) + shift;
        answer.error = std::min(error + fixed, question.eps);  // roundings of this sum are within those of the shift
    };
    if (!(known > 0) || !std::isfinite(known) || !std::isfinite(gaps)) return false;
    fixed += state.too_large() / known;
    const double aim = question.eps - fixed;
    if (!(aim > 0)) return false;
    const double high = std::log1p(gaps / known), low = gaps < mass ? -std::log1p(-gaps / known) : std::log(known / std::max(exact, 1e-300));
    if (std::max(high, low) <= aim) {
        finish(known, std::max(high, low));
        return true;
    }
    if (!(delta > 0)) return false;
    // The bet: that the sum is within exp(+-aim) of where the draws put it.
    Drawn drawn;
    const double odds = 2 / delta;
    double estimated = mass, draws = 0;
    for (const Proposal::Head& head : proposal.heads) estimated += head.mass;
    for (uint32_t round = 0; round < kMostRounds; ++round) {
        std::vector<DrawnClass> classes;
        if (round == 0) {  // what fell during the scan: how many knows nothing of what they fell on
            const double rate = proposal.rate.at(estimated);
            for (const Proposal::Point& point : proposal.points)
                if (point.mark < rate) classes.push_back({point.id, 1, point.mass, point.gap});
            std::sort(classes.begin(), classes.end(), [](const DrawnClass& a, const DrawnClass& b) { return a.id < b.id; });
        } else {
            if (!(static_cast<double>(answer.rows) + draws < static_cast<double>(state.most_scored()))) return false;
            const auto wanted = static_cast<int64_t>(std::max(0.0, draws)) + kLeastDraws;
            classes = drawn_at(state, proposal, 0, before, sorted_points(*e.kernels, proposal.key, round, wanted, gaps));
        }
        rows.clear();
        for (const DrawnClass& one : classes) rows.push_back({one.id, 0});
        state.score_asked(rows);
        for (size_t i = 0; i < classes.size(); ++i) drawn.add((term(rows[i].z) - classes[i].mass) / classes[i].gap, classes[i].times);
        const double middle = known + gaps * drawn.sum / drawn.count();
        if (refuted(drawn.each, odds, (middle * std::exp(aim) - known) / gaps, (middle * std::exp(-aim) - known) / gaps)) {
            finish(middle, aim);
            return true;
        }
        draws = std::max(kBeyondWanted * drawn.wanted(odds, aim * middle / gaps) - drawn.count(), kLeastDraws + kMoreDraws * drawn.count());
    }
    return false;
}

}  // namespace headlong
