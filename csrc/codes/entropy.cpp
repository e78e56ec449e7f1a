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

#include "codes/pass.h"
#include "executor/verbs.h"
#include "normaliser/draw_points.h"

namespace headlong {
namespace {

constexpr double kMassError = 0x1p-13;  // of an exponent: a mass is off by 2^-14 of it, and its logarithm stands for it
constexpr double kWeightUp = 1 + 0x1p-10;     // of a weight: exponents of float32 masses, in each of its two forms
constexpr double kForT = 0.95;          // of eps, the rest is for S, which counts by its square
constexpr double kSpread = 0.004;       // the mean of X^2 that is expected: errors seldom use more of their radii
constexpr double kFirst = 0.7;          // of the draws that this takes by a rule that is seldom too low
constexpr double kMore = 0.12;          // of those made, before the bet is looked at again
constexpr double kMostTaken = 3;         // times the first draws, of those that fell during the scan
constexpr double kEarly = 0.8;          // of the draws that a rule wants: bets are seldom won before
constexpr double kLater = 0.4;          // of those made, where a scan is needed to find them
constexpr uint32_t kRounds = 64;
constexpr double kExact = 0.05;         // of eps, what rows in float32 may lose; a nat of a logit counts by its surprisal

struct Ends {
    double low, high;
};

// What log S - T / S can be: for a T it is least where S = -T, and largest at an end of S; it falls with T.
Ends entropies(Ends s, Ends t) {
    const auto value = [](double sum, double own) { return std::log(sum) - own / sum; };
    const double bottom = std::min(s.high, std::max(s.low, -t.high));
    return {value(bottom, t.high), std::max(value(s.low, t.low), value(s.high, t.low))};
}

struct Drawn {
    int32_t id, times;
    double y, mass, gap, mark;
};

}  // namespace

bool entropy_of_codes(const Codes& codes, const PreparedCodes& all, int64_t q, const Question& question, const CodeMasses& masses, double delta, int threads,
                      Answer& answer) {
    const Executor& e = *codes.rows;
    const CodeQuery& query = all.queries[q];
    if (static_cast<int64_t>(masses.heads.size()) > most_scored(codes)) return false;
    const Exponent exponents(codes, question.beta);
    const double shift = exponents.at(query, masses.edge);
    Near near;
    Question finer = question;
    finer.eps *= kExact;
    const double logit = dot_error(e, query.hidden) * question.beta + allow_float32(e, query.hidden, finer, near);
    std::vector<Scored> rows;
    const auto exponent = [&](double z) { return exponents.above(z, query, masses.edge); };
    const auto score_rows = [&] { score_asked(e, query.hidden, near, rows, threads, answer); };
    for (const CodeHead& head : masses.heads) rows.push_back({head.id, 0});
    score_rows();
    double exact = 0, first = 0;  // sums of e^y and of y e^y
    for (const Scored& row : rows) {
        const double y = exponent(row.z);
        exact += std::exp(y), first += y * std::exp(y);
    }
    double mass = 0, moment = 0, plain = 0;
    for (int64_t t = 0; t < codes.count; ++t) {
        mass += masses.sums[t].mass;
        if (!(masses.spreads[t].shared > 0)) continue;
        moment += masses.spreads[t].moment;
        plain += static_cast<double>(masses.sums[t].off.part) * masses.spreads[t].shared;
    }
    const double known = exact + mass;
    if (!(known > 0) || !std::isfinite(known) || !std::isfinite(plain)) return false;
    const double c = (first + moment) / known, lift = std::max(1.0, std::fabs(c)) * kWeightUp;  // at least 1: gaps are those of S, too
    const double about = -known;  // T at the estimates, by the choice of c
    std::vector<double> before(codes.count + 1);
    for (int64_t t = 0; t < codes.count; ++t) {
        const Stretch& off = masses.sums[t].off;
        const CodeMasses::Spread& own = masses.spreads[t];
        before[t + 1] = before[t] + (own.shared > 0 ? off.part * ((lift + 0.5 * off.most()) * own.shared + own.leaning) : 0);
    }
    const double gaps = before[codes.count], entropy = std::log(known) - c;
    if (!std::isfinite(gaps) || !std::isfinite(entropy)) return false;
    const double fixed = (1 + 2 * std::fabs(entropy)) * logit + kSumError + (kSumError * (std::fabs(1 + c) * mass - moment) + kMassError * mass) / known +
                         0x1p-50 * (std::fabs(shift) + 64) + too_large(codes) * (2 - 2 * kFloor + 2 * std::fabs(c)) / known;
    const double aim = question.eps - fixed;
    if (!(aim > 0)) return false;
    // The answer, if it is within what was asked for.
    const auto within = [&](Ends s, Ends t) {
        const Ends found = entropies(s, t);
        const double half = 0.5 * (found.high - found.low), middle = 0.5 * (found.low + found.high) - 1 - c;
        if (!(half <= aim)) return false;
        answer.entropy = std::max(0.0, middle), answer.error = std::min(half + fixed, question.eps);
        answer.lse = std::log(0.5 * (s.low + s.high)) + shift;
        return true;
    };
    const double least = std::max(exact * (1 - kSumError), known - plain);
    if (least > 0 && within({least, known + plain}, {about - gaps, about + gaps})) return true;
    if (!(delta > 0)) return false;

    const double odds = 2 / delta;
    double found = 0, for_t = kForT;
    for (const CodeHead& head : masses.heads) found += head.mass;
    // The points of the scan with their marks by these weights, as far as none is missing: those with marks below n / gaps are n draws, about.
    const double complete = masses.rate(masses.sure + found) * std::min(1.0, masses.lift / lift);
    double draws = kFirst * draws_for(odds, for_t * aim * known / gaps, kSpread);
    const double limit = std::min(complete, kMostTaken * draws / gaps);
    std::vector<Drawn> points;
    for (const CodeDraw& point : masses.draws) {
        if (!(point.mark < limit * std::max(1.0, lift / masses.lift))) continue;
        const double y = std::log(static_cast<double>(point.mass)), part = 0.5 * masses.sums[point.id / kTile].off.most();
        const double ratio = (lift + part - y) / (masses.lift + part - y), mark = point.mark / ratio;
        if (mark < limit) points.push_back({point.id, 1, y, point.mass, point.gap * ratio, mark});
    }
    std::vector<double> of_t, of_s;  // X of each draw
    double sum_t = 0, sum_s = 0, squares = 0, taken = 0;  // marks up to there
    auto next = points.begin();
    for (uint32_t round = 0; round < kRounds; ++round) {
        if (!(static_cast<double>(answer.rows) + draws < static_cast<double>(most_scored(codes)))) return false;
        std::vector<Drawn> later;
        auto first_drawn = next, last_drawn = next;
        if (taken < limit) {
            taken = std::min(limit, taken + draws / gaps);
            last_drawn = next = std::partition(next, points.end(), [&](const Drawn& one) { return one.mark < taken; });
            std::sort(first_drawn, last_drawn, [](const Drawn& a, const Drawn& b) { return a.id < b.id; });
        } else {
            draws = std::max(draws, kLater * static_cast<double>(of_t.size()));
            for (const CodeDrawn& one : find_drawn(codes, all, q, question, masses, lift, before, sorted_points(*e.kernels, masses.key, round + 1, static_cast<int64_t>(draws) + 16, gaps)))
                later.push_back({one.id, one.times, std::log(one.mass), one.mass, one.gap, 0});
            first_drawn = later.begin(), last_drawn = later.end();
        }
        rows.clear();
        for (auto one = first_drawn; one < last_drawn; ++one) rows.push_back({one->id, 0});
        score_rows();
        for (size_t i = 0; i < rows.size(); ++i) {
            const Drawn& one = first_drawn[i];
            const double y = exponent(rows[i].z), term = std::exp(y);
            const double t = ((y - 1 - c) * term - (one.y - 1 - c) * one.mass) / one.gap, s = (term - one.mass) / one.gap;
            of_t.insert(of_t.end(), one.times, t), of_s.insert(of_s.end(), one.times, s);
            sum_t += t * one.times, sum_s += s * one.times, squares += t * t * one.times;
        }
        const double count = std::max(1.0, static_cast<double>(of_t.size())), mean_t = sum_t / count, mean_s = sum_s / count;
        const double middle = known + gaps * mean_s, off_t = for_t * aim * middle / gaps, off_s = 0.5 * std::sqrt((1 - kForT) * aim) * middle / gaps;
        const double wanted = draws_for(odds, off_t, squares / count);
        if (count > kEarly * wanted && middle > 0 && refuted(of_t, odds, mean_t + off_t, mean_t - off_t) && refuted(of_s, odds, mean_s + off_s, mean_s - off_s)) {
            const double t = about + gaps * mean_t;
            if (within({middle - gaps * off_s, middle + gaps * off_s}, {t - gaps * off_t, t + gaps * off_t})) return true;
            for_t *= 0.8;  // S is so uncertain, or so far from its estimates, that it takes more than was set apart for it
        }
        draws = std::max(kEarly * wanted - count, kMore * count + 16);
    }
    return false;
}

}  // namespace headlong
