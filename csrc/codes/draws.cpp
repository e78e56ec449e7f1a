// Where draws go by mass: those of all classes that are not in the nucleus are made again, of the classes that come before them.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "codes/collect_keys.h"

namespace headlong {
namespace {

// Another draw, of the classes that come before one that is not in the nucleus, from the estimates that are kept.
bool draw_before(const QueryState& state, TileKeys& keys, const ScanRadii& wide, int draw, const Scored& behind) {
    const Codes& codes = state.codes;
    const double off = state.order.around(behind.z), add = state.query.add;
    const float reach = floor_of(behind.z - off, add) - wide.constant[0], above = -floor_of(-behind.z - off, -add) + wide.constant[0];
    std::vector<KeyHit> hits;
    keys.keys.restart(state.q, draw);
    for (int64_t tile = 0; tile < codes.count; ++tile) {
        alignas(64) float ends[kTile], radii[kMostLanes];
        const float *est = keys.estimates(state.q) + tile * kTile, *shares = codes.shares(tile);
        codes.scan->radii(codes.tile(tile), codes.layout, wide, 0, radii, nullptr, nullptr);
        const uint64_t which = state.allowed(tile) & codes.scan->reach(est, shares, radii[0], reach, ends);
        if (which == 0) continue;
        keys.take(hits, state.q, {tile, est, radii[0], wide.constant[0], which, codes.scan->reach(est, shares, -radii[0], above, ends)}, draw, draw + 1);
    }
    keys.keys.drop_low(state.q, hits);
    std::unordered_map<int64_t, double> known;
    const auto score = [&](std::vector<Scored>& rows) { state.score(rows); };
    const auto before = [&](const Scored& one) { return state.order(one, behind); };
    return static_cast<int64_t>(hits.size()) <= state.most_scored() && keys.keys.largest(state.q, draw, std::move(hits), known, score, before, state.answer.draws[draw]);
}

}  // namespace

void draw_into_nucleus(const QueryState& state, TileKeys& keys, double delta, double budget) {
    const Executor& e = state.e;
    Answer& answer = state.answer;
    const std::vector<Scored>& best = answer.best;
    if (best.empty() || static_cast<int64_t>(best.size()) < state.question.k || !std::isfinite(best.back().z)) return;
    const SampleRule& rule = state.question.rules[state.q];
    const double top_p = rule.top_p, beta = state.question.beta, top = e.linked(best[0].z) * beta;
    Scored in{-1, kInf}, out{-1, -kInf};  // the last class that is known to be in the nucleus, the first that is known not to be
    const auto as_in = [&](const Scored& x) { return x.id == in.id || state.order(x, in); };
    const auto as_out = [&](const Scored& x) { return x.id == out.id || state.order(out, x); };
    std::vector<double> mass;
    double known = 0;
    for (const Scored& one : best) mass.push_back(std::exp(e.linked(one.z) * beta - top)), known += mass.back();
    // What the best and the normaliser say by themselves; whether they hold the whole of it.
    const auto hold = [&] {
        const bool near = std::isfinite(answer.error);
        const double low = std::max(known, near ? std::exp(answer.lse - answer.error - top) : 0), high = near ? std::exp(answer.lse + answer.error - top) : kInf;
        double before = 0;
        for (size_t i = 0; i < best.size(); before += mass[i++]) {
            if (before < top_p * low * kSurely && !as_in(best[i])) in = best[i];
            if (before > top_p * high / kSurely && !as_out(best[i])) out = best[i];
        }
        return known * kSurely > top_p * high;
    };
    ScanRadii wide = radii_of(state.codes, &state.query, 1, kappa_of(2.0 * static_cast<double>(e.vocab), delta));
    wide.constant[0] += static_cast<float>(state.exponent.lost(state.query));
    const uint64_t key = key_of(state.hidden, e.dim, state.question.seed);
    int asked = 0;
    const auto decide = [&](const Scored& x) {  // false where it stays open
        const int side = side_of(state, wide, keys.estimates(state.q), x, {key, budget, asked++, x.id});
        if (side != 0) (side < 0 ? in : out) = x;
        return side != 0;
    };
    bool held = hold();
    for (int draw = 0; draw < keys.keys.draws() && !held; ++draw) {
        for (int round = 0; !held; ++round) {
            const Scored x{answer.draws[draw].id, answer.draws[draw].z};
            if (as_in(x)) break;
            if (!as_out(x)) {
                const bool decided = decide(x);
                held = hold();
                if (!decided && !held) return;
                continue;
            }
            if (round >= kMostRedrawn || !draw_before(state, keys, wide, draw, out)) return;
        }
    }
    answer.inside = !held;
    while (held) {
        answer.least = static_cast<size_t>(std::count_if(best.begin(), best.end(), as_in));
        answer.most = std::max(answer.least, best.size() - static_cast<size_t>(std::count_if(best.begin(), best.end(), as_out)));  // a bet may be lost
        size_t next = answer.most;
        for (int draw = 0; draw < keys.keys.draws() && next == answer.most; ++draw) {
            size_t place = 0;
            pick(e, best.data(), answer.most, rule, static_cast<uint32_t>(draw), &place);
            if (place >= answer.least) next = place;
        }
        const double between = std::accumulate(mass.begin() + static_cast<int64_t>(answer.least), mass.begin() + static_cast<int64_t>(answer.most), 0.0);
        if (next == answer.most && between > state.question.eps * top_p * known) next = (answer.least + answer.most) / 2;
        if (next == answer.most || !decide(best[next])) return;
    }
}

}  // namespace headlong
