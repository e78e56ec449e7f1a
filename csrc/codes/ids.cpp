// The k best classes from what reached a threshold during the scan: the best estimates are scored exactly, their worst is the threshold
// from then on, and what can still reach it is scored, best first, until nothing can. Or all classes that reach a logit that is known.
#include <algorithm>
#include <cmath>
#include <limits>

#include "codes/constants.h"
#include "codes/query_state.h"

namespace headlong {
namespace {

// The classes of one query that reach a threshold that is known.
std::vector<Hit> scan_again(const QueryState& state, double kappa, float threshold) {
    const Codes& codes = state.codes;
    std::vector<std::vector<Hit>> each(state.threads);
    const ScanRadii own = radii_of(codes, &state.query, 1, kappa);
    scan_tiles(codes, {state.prepared.alone(codes, state.q)}, 1, state.threads, [&](int thread, size_t, int64_t tile, const float* est) {
        alignas(64) float upper[kTile], radii[kMostLanes];
        codes.scan->radii(codes.tile(tile), codes.layout, own, 0, radii, nullptr, nullptr);
        uint64_t found = codes.scan->reach(est, codes.shares(tile), radii[0], threshold - own.constant[0], upper);
        if (found != 0) found &= state.allowed(tile);
        each_bit(found, [&](int c) { each[thread].push_back({static_cast<int32_t>(tile * kTile + c), est[c], upper[c] + own.constant[0]}); });
    });
    return joined(each);
}

}  // namespace

float floor_of(double z, double add) {
    constexpr double lowest = std::numeric_limits<float>::lowest();  // minus infinity would be below what is not there
    const double least = z - add;
    if (!(least > lowest)) return std::numeric_limits<float>::lowest();
    return std::max(std::numeric_limits<float>::lowest(), std::nextafterf(static_cast<float>(least), -std::numeric_limits<float>::infinity()));
}

bool best_of_codes(const QueryState& state, double kappa, std::vector<Hit> hits, float threshold) {
    std::vector<Scored>& best = state.answer.best;
    const int64_t k = state.question.k;
    const BestOfHits of{state.order, k, best, [&](std::vector<Scored>& rows) { state.score(rows); }};
    const auto reach = [&] {
        return static_cast<int64_t>(best.size()) == k ? floor_of(best.back().z, state.query.add) : std::numeric_limits<float>::lowest();
    };
    size_t first = of.first(hits);
    if (first > 0 && reach() < threshold) {  // the threshold of the scan was too high: it went by estimates
        hits = scan_again(state, kappa, reach());
        state.answer.bytes += static_cast<double>(state.codes.count * state.codes.layout.bytes);
        first = of.first(hits);
    }
    return first == 0 || of.rest(hits, first, std::max(state.most_scored(), 2 * k), std::max(kRowsAtOnce, at_once(k)), reach);
}

}  // namespace headlong
