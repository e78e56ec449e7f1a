// Whether a deeper level pays for the classes with the widest gaps, and the look at them where it does: what it costs and leaves is
// weighed against scoring rows. Guessed from some classes of each chunk, and from all whose gaps are so wide that one of them decides;
// what becomes of the gaps (normaliser/by_bet.cpp) is exact.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "executor/look_costs.h"
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
    void moves(int64_t id, float from, float to) {
        const bool alone = from >= heavy;
        if (!alone && id % kChunk >= first) return;
        add(from, alone ? -1 / scale : -1);
        add(to, alone ? 1 / scale : 1);
    }
};

// Which classes to take out, the widest gaps first, when `price` rows are paid for each, `left` of its gap stays, and the rest
// is sampled. Guessed.
Wager cheapest(const Outline& all, const Weighed& w, double known, double aim, const Rule& rule, double price, double left) {
    // Gaps that may have been clamped at exp(88) are always taken.
    const int clamped = bin_of(1e37f);
    double rest = all.scale * std::accumulate(all.gaps.begin(), all.gaps.begin() + clamped, 0.0), rows = 0;
    const double sum = known + w.sum;
    Wager wager;
    for (int b = kBins; b > 0; --b) {
        if (b < kBins) {
            if (w.gap.empty() || (!(all.count[b] > 0) && b != clamped)) continue;  // there may be no gap at all
            rows += all.scale * all.count[b];
            if (b < clamped) rest -= (1 - left) * all.gaps[b] * all.scale;
        }
        const double cost = price * rows + rule.draws(aim * sum / std::max(rest, 1e-300)) + 64;
        if (b <= clamped && cost < wager.cost) {
            wager.cost = cost;
            wager.edge = edge_of(b);
        }
    }
    return wager;
}

// Brings the classes with gaps from `edge` on to a deeper level.
void look_closer(const Executor& e, Look& look, int q, int level, float edge, double beta, int threads, Weighed& w, Outline& outline,
                 Answer& answer) {
    constexpr int64_t kGrain = 256;
    float* est = look.est.data() + q * e.padded;
    const std::vector<int32_t> ids = classes_from(e, w, edge, threads);
    const int64_t count = static_cast<int64_t>(ids.size()), groups = (count + kGrain - 1) / kGrain;
    std::vector<double> moved(groups, 0.0);
    std::vector<float> before(ids.size());
    over_chunks(groups, threads, [&](int, int64_t g) {
        const int32_t* some = &ids[g * kGrain];
        const int64_t n = std::min(kGrain, count - g * kGrain), whole = in_blocks(n);
        float closer[kGrain], rad[kGrain], middle[kGrain], gap[kGrain];
        std::fill(closer, closer + whole, -std::numeric_limits<float>::infinity());
        std::fill(rad, rad + whole, 0.f);
        for (int64_t i = 0; i < n; ++i) closer[i] = est[some[i]];
        look_deeper(e, look, q, level, some, n, closer, rad);
        e.kernels->gaps(closer, rad, whole, e.link, static_cast<float>(beta), w.shift, w.slop, middle, gap);
        for (int64_t i = 0; i < n; ++i) {
            moved[g] += static_cast<double>(middle[i]) - w.middle[some[i]];
            est[some[i]] = closer[i];
            w.middle[some[i]] = middle[i];
            before[g * kGrain + i] = w.gap[some[i]];
            w.gap[some[i]] = gap[i];
        }
    });
    for (int64_t i = 0; i < count; ++i) outline.moves(ids[i], before[i], w.gap[ids[i]]);
    w.sum += std::accumulate(moved.begin(), moved.end(), 0.0);
    answer.bytes += static_cast<double>(count) * e.deeper[level].bytes;
}

// How much of a gap a deeper level leaves, by the classes that stand for all.
double left_by(const Executor& e, const Look& look, int q, size_t level) {
    const DeeperQuery& query = look.prepared.deeper[q * e.deeper.size() + level];
    double now = 0, then = 0;
    for (int64_t i = 0; i < 16; ++i) {
        const int64_t id = e.vocab * i / 16;
        const double wide = look.prepared.radius[q].at(id), narrow = query.radius.at(id);
        if (!(wide < 20)) continue;
        now += std::expm1(wide);
        then += std::expm1(narrow);
    }
    return now > 0 ? std::min(1.0, then / now) : 1;
}

}  // namespace

// Brings the widest on to the deeper levels that pay; what is left to be scored then.
Wager look_where_it_pays(const Executor& e, Look& look, int q, double exact, double aim, const Rule& rule, double beta, int threads,
                         Weighed& w, Answer& answer) {
    Outline outline(e, w, aim * (exact + w.sum), exact > 0, threads);
    answer.passes += 0.75 + 0.75 * static_cast<double>(outline.first) / kChunk;  // their weights and what is widest; the outline
    Wager wager = cheapest(outline, w, exact, aim, rule, 1, 0);
    const double most = 0.8 * part_of_dense(e, look) * static_cast<double>(e.vocab);
    for (size_t level = 0; look.source == &e.preview && level < e.deeper.size(); ++level) {
        const double price = kCloser * static_cast<double>(e.deeper[level].bytes) / e.row_bytes();
        const Wager closer = cheapest(outline, w, exact, aim, rule, price, left_by(e, look, q, level));
        if (closer.cost > 0.8 * wager.cost || !(closer.cost < most)) continue;
        look_closer(e, look, q, static_cast<int>(level), closer.edge, beta, threads, w, outline, answer);
        wager = cheapest(outline, w, exact, aim, rule, 1, 0);
    }
    return wager;
}

}  // namespace headlong
