// The k best classes from what reached a threshold during the scan: the best estimates are scored exactly, their worst is the threshold
// from then on, and what can still reach it is scored, best first, until nothing can. Or all classes that reach a logit that is known.
#include <algorithm>
#include <cmath>
#include <limits>

#include "codes/pass.h"
#include "executor/verbs.h"

namespace headlong {
namespace {

constexpr size_t kAtOnce = 256;  // rows: threads that share fewer wait longer for each other than for the rows

// The classes of one query that reach a threshold that is known.
std::vector<Hit> scan_again(const Codes& codes, const PreparedCodes& all, int64_t q, const Question& question, double kappa, float threshold, int threads) {
    std::vector<std::vector<Hit>> each(threads);
    const ScanRadii own = radii_of(codes, &all.queries[q], 1, kappa);
    scan_tiles(codes, {all.alone(codes, q)}, 1, threads, [&](int thread, size_t, int64_t tile, const float* est) {
        alignas(64) float upper[kTile], radii[kMostLanes];
        codes.scan->radii(codes.tile(tile), codes.layout, own, 0, radii, nullptr, nullptr);
        uint64_t found = codes.scan->reach(est, codes.shares(tile), radii[0], threshold - own.constant[0], upper);
        if (found != 0) found &= allowed_in(question, q, codes.rows->vocab, tile);
        for (; found != 0; found &= found - 1) {
            const int i = __builtin_ctzll(found);
            each[thread].push_back({static_cast<int32_t>(tile * kTile + i), est[i], upper[i] + own.constant[0]});
        }
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

bool best_of_codes(const Codes& codes, const PreparedCodes& all, int64_t q, const Question& question, double kappa, std::vector<Hit> hits, float threshold,
                   int threads, Answer& answer) {
    const Executor& e = *codes.rows;
    const CodeQuery& query = all.queries[q];
    const TrueOrder order(*e.kernels, e, query.hidden);
    const BestOfHits of{order, question.k, answer.best, [&](std::vector<Scored>& rows) {
        score(e, query.hidden, rows, threads);
        answer.rows += static_cast<int64_t>(rows.size());
    }};
    const auto reach = [&] {
        const bool full = static_cast<int64_t>(answer.best.size()) == question.k;
        return full ? floor_of(answer.best.back().z, query.add) : std::numeric_limits<float>::lowest();
    };
    size_t first = of.first(hits);
    if (first > 0 && reach() < threshold) {  // the threshold of the scan was too high: it went by estimates
        hits = scan_again(codes, all, q, question, kappa, reach(), threads);
        answer.bytes += static_cast<double>(codes.count * codes.layout.bytes);
        first = of.first(hits);
    }
    const auto most = std::max(most_scored(codes), 2 * question.k);
    return first == 0 || of.rest(hits, first, most, std::max(kAtOnce, at_once(question.k)), reach);
}

}  // namespace headlong
