// The normaliser of one query: exact where classes were scored, intervals elsewhere.
//
//     sum of terms = sum over heads, exact + sum b + (sum u) E[X],      X = (term - b) / u in [-1, 1] of a class drawn in proportion to u
//
// b is the mass at the estimate and u how far a term can be off it. Intervals may be close enough as they are; else rows are drawn until a
// bet against every other value is won (normaliser/betting.h).
#include <algorithm>
#include <cmath>

#include "codes/pass.h"
#include "executor/verbs.h"
#include "normaliser/draw_points.h"
#include "runtime/prefetch.h"

namespace headlong {
namespace {


}  // namespace

std::vector<CodeDrawn> find_drawn(const Codes& codes, const PreparedCodes& all, int64_t q, const Question& question, const CodeMasses& masses, double lift,
                                  const std::vector<double>& before, const std::vector<double>& points) {
    const CodeGroup alone = all.alone(codes, q);
    const Exponent exponent(codes, question.beta);
    std::vector<CodeDrawn> found;
    alignas(64) float est[kTile], linked[kTile], mass[kTile], shared[kTile];
    int64_t tile = -1, next = 0;
    int place = 0;
    double sum = 0;
    for (double point : points) {
        while (next < codes.count && before[next + 1] <= point) ++next;
        const int64_t in = std::min(next, codes.count - 1);
        if (in != tile) {
            tile = in, place = 0, sum = before[tile];
            codes.scan->estimate(codes.tile(tile), codes.layout, alone.passes.data(), static_cast<int>(alone.passes.size()), 1, 0, est);
            CodeMasses::Sum sum_of;
            CodeMasses::Spread spread;
            masses_of_tile(exponent, question, q, tile, exponent.of(est, all.queries[q], linked), masses.sums[tile].off, masses.edge, lift, mass, shared, &sum_of,
                           lift > 0 ? &spread : nullptr);
        }
        const double part = masses.sums[tile].off.part;
        int last = -1;
        for (int i = place; i < kTile; ++i) {
            if (!(shared[i] > 0)) continue;
            last = i;
            if (point < sum + part * shared[i]) break;
            int more = i + 1;
            while (more < kTile && !(shared[more] > 0)) ++more;
            if (more == kTile) break;  // roundings led beyond the tile
            sum += part * shared[i], place = more;
        }
        if (last < 0) continue;
        const int32_t id = static_cast<int32_t>(tile * kTile + last);
        if (!found.empty() && found.back().id == id) ++found.back().times;
        else found.push_back({id, 1, mass[last], part * shared[last]});
    }
    return found;
}

void score_asked(const Executor& e, const double* hidden, const Near& near, std::vector<Scored>& rows, int threads, Answer& answer) {
    for (const Scored& row : rows) prefetch_row(e.weight, static_cast<int64_t>(e.row_bytes()), row.id);
    score_near(e, hidden, near, rows, threads);
    answer.rows += static_cast<int64_t>(rows.size());
}

bool normaliser_of_codes(const Codes& codes, const PreparedCodes& all, int64_t q, const Question& question, const CodeMasses& masses, double delta, int threads,
                         Answer& answer) {
    const Executor& e = *codes.rows;
    const CodeQuery& query = all.queries[q];
    if (static_cast<int64_t>(masses.heads.size()) > most_scored(codes)) return false;
    const Exponent exponent(codes, question.beta);
    const double shift = exponent.at(query, masses.edge);
    // Rows in float32 where what that loses is little of eps.
    Near near;
    double fixed = dot_error(e, query.hidden) * question.beta + kSumError + allow_float32(e, query.hidden, question, near) + 0x1p-50 * (std::fabs(shift) + 64);
    if (!(question.eps > fixed)) return false;
    const auto term = [&](double z) { return std::exp(exponent.above(z, query, masses.edge)); };
    std::vector<Scored> rows;
    const auto score_rows = [&] { score_asked(e, query.hidden, near, rows, threads, answer); };
    for (const CodeHead& head : masses.heads) rows.push_back({head.id, 0});
    score_rows();
    double exact = 0;
    for (const Scored& row : rows) exact += term(row.z);
    std::vector<double> before(codes.count + 1);
    double mass = 0;
    for (int64_t t = 0; t < codes.count; ++t) {
        mass += masses.sums[t].mass;
        before[t + 1] = before[t] + masses.sums[t].gap();
    }
    const double gaps = before[codes.count], known = exact + mass;
    const auto finish = [&](double sum, double error) {
        answer.lse = std::log(sum) + shift;
        answer.error = std::min(error + fixed, question.eps);  // roundings of this sum are within those of the shift
    };
    if (!(known > 0) || !std::isfinite(known) || !std::isfinite(gaps)) return false;
    fixed += too_large(codes) / known;
    const double aim = question.eps - fixed;
    if (!(aim > 0)) return false;
    const double high = std::log1p(gaps / known), low = gaps < mass ? -std::log1p(-gaps / known) : std::log(known / std::max(exact, 1e-300));
    if (std::max(high, low) <= aim) {
        finish(known, std::max(high, low));
        return true;
    }
    if (!(delta > 0)) return false;
    Bet bet{known, gaps, aim, 2 / delta};
    double estimated = mass, draws = 0;
    for (const CodeHead& head : masses.heads) estimated += head.mass;
    for (uint32_t round = 0; round < 16; ++round) {
        std::vector<CodeDrawn> drawn;
        if (round == 0) {  // what fell during the scan: how many knows nothing of what they fell on
            const double rate = masses.rate(estimated);
            for (const CodeDraw& point : masses.draws)
                if (point.mark < rate) drawn.push_back({point.id, 1, point.mass, point.gap});
            std::sort(drawn.begin(), drawn.end(), [](const CodeDrawn& a, const CodeDrawn& b) { return a.id < b.id; });
        } else {
            if (!(static_cast<double>(answer.rows) + draws < static_cast<double>(most_scored(codes)))) return false;
            const auto wanted = static_cast<int64_t>(std::max(0.0, draws)) + 16;
            drawn = find_drawn(codes, all, q, question, masses, 0, before, sorted_points(*e.kernels, masses.key, round, wanted, gaps));
        }
        rows.resize(drawn.size());
        for (size_t i = 0; i < drawn.size(); ++i) rows[i] = {drawn[i].id, 0};
        score_rows();
        for (size_t i = 0; i < drawn.size(); ++i) bet.add((term(rows[i].z) - drawn[i].mass) / drawn[i].gap, drawn[i].times);
        if (bet.won()) {
            finish(bet.middle(), aim);
            return true;
        }
        draws = std::max(1.1 * bet.wanted() - bet.count(), 16 + 0.2 * bet.count());
    }
    return false;
}

}  // namespace headlong
