// Which classes a bet takes out, those with the widest gaps: what scoring their rows costs is weighed against the draws that the others
// take. Guessed from some classes of each chunk, and from all whose gaps are so wide that one of them decides.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "executor/verbs.h"
#include "normaliser/betting.h"
#include "normaliser/histogram.h"
#include "runtime/shared_work.h"

namespace headlong {
namespace {

constexpr double kHeavy = 4;  // of what may be off in all: a gap from there on is more than a few draws

// The classes with gaps from `edge` on.
std::vector<int32_t> classes_from(const Executor& e, const Weighed& w, float edge, int threads) {
    const float none[kChunk] = {};
    std::vector<std::vector<int32_t>> wide(threads);
    over_chunks((e.padded + kChunk - 1) / kChunk, threads, [&](int t, int64_t c) {
        float kept[kChunk], upper[kChunk];
        int32_t ids[kChunk];
        const int64_t first = c * kChunk, n = std::min<int64_t>(kChunk, e.padded - first);
        const int64_t came = e.kernels->survivors(&w.gap[first], none, n, edge, static_cast<int32_t>(first), ids, kept, upper);
        wide[t].insert(wide[t].end(), ids, ids + came);
    });
    return joined(wide);
}

// Counts and sums of gaps by their sizes, of the first classes of each chunk: what guesses go by. Where nothing was scored, the few that
// have all the mass are among the others: those with heavy gaps are counted one by one.
struct Outline {
    std::vector<double> count = std::vector<double>(kBins, 0.0), gaps = std::vector<double>(kBins, 0.0);
    int64_t first = kChunk;
    double scale = 1;
    float least;  // all less than that is in the lowest bin: together it is too little to matter, and it is most of the classes
    float heavy = std::numeric_limits<float>::infinity();

    Outline(const Executor& e, const Weighed& w, double open, bool scored, int threads)
        : least(static_cast<float>(open / (64 * static_cast<double>(e.padded)))) {
        const int64_t chunks = (e.padded + kChunk - 1) / kChunk;
        if (chunks >= 32) {
            first = kChunk / 16;
            if (!scored) heavy = static_cast<float>(std::min(kHeavy * open, 1e37));
        }
        int64_t seen = 0;
        for (int64_t c = 0; c < chunks; ++c) {
            const int64_t stop = std::min(e.padded, c * kChunk + first);
            double small = 0, few = 0;
            for (int64_t i = c * kChunk; i < stop; ++i) {
                if (w.gap[i] < least) small += w.gap[i], ++few;
                else if (w.gap[i] < heavy) add(w.gap[i], 1);
            }
            count[0] += few;
            gaps[0] += small;
            seen += stop - c * kChunk;
        }
        scale = static_cast<double>(e.padded) / static_cast<double>(std::max<int64_t>(1, seen));
        if (std::isfinite(heavy))
            for (const int32_t id : classes_from(e, w, heavy, threads)) add(w.gap[id], 1 / scale);
    }
    void add(float gap, double times) {
        const int bin = gap < least ? 0 : bin_of(gap);
        count[bin] += times;
        gaps[bin] += times * gap;
    }
};

}  // namespace

// The widest gaps first, while the rest is sampled.
Wager cheapest_wager(const Executor& e, const Weighed& w, double exact, double aim, const Rule& rule, int threads, Answer& answer) {
    const Outline all(e, w, aim * (exact + w.sum), exact > 0, threads);
    answer.passes += 0.75 + 0.75 * static_cast<double>(all.first) / kChunk;  // their weights and what is widest; the outline
    // Gaps that may have been clamped at exp(88) are always taken.
    const int clamped = bin_of(1e37f);
    double rest = all.scale * std::accumulate(all.gaps.begin(), all.gaps.begin() + clamped, 0.0), rows = 0;
    Wager wager;
    for (int b = kBins; b > 0; --b) {
        if (b < kBins) {
            if (w.gap.empty() || (!(all.count[b] > 0) && b != clamped)) continue;  // there may be no gap at all
            rows += all.scale * all.count[b];
            if (b < clamped) rest -= all.gaps[b] * all.scale;
        }
        const double cost = rows + rule.draws(aim * (exact + w.sum) / std::max(rest, 1e-300)) + 64;
        if (b <= clamped && cost < wager.cost) {
            wager.cost = cost;
            wager.edge = edge_of(b);
        }
    }
    return wager;
}

}  // namespace headlong
