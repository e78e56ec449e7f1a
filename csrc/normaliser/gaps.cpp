// The gaps of a query's classes: which are wide enough to be looked at more closely or to be scored, where the others are drawn from.
//
// How many rows to score, and whether a deeper level pays, is guessed from every eighth chunk; what is drawn, with which
// probability, and what becomes of it (normaliser/by_bet.cpp, normaliser/by_draws.cpp) is exact.
#include <algorithm>
#include <numeric>

#include "normaliser/betting.h"
#include "normaliser/histogram.h"

namespace headlong {
namespace {

template <typename T>
std::vector<T> joined(const std::vector<std::vector<T>>& each) {
    std::vector<T> all;
    for (const std::vector<T>& one : each) all.insert(all.end(), one.begin(), one.end());
    return all;
}

// A radius, or what is typical of it.
Radius times(Radius radius, double part) {
    for (int t = 0; t < radius.terms; ++t) radius.term[t] *= static_cast<float>(part);
    radius.constant *= static_cast<float>(part);
    return radius;
}

}  // namespace

// The middles and gaps of all classes, and the sums of the middles chunk by chunk.
void weigh(const Executor& e, const Look& look, int q, const Rule& rule, double beta, int threads, Weighed& w) {
    const Radius radius = rule.learned == nullptr ? look.prepared.likely[q] : times(look.prepared.radius[q], rule.learned->narrow[0]);
    const float* est = look.est.data() + q * e.padded;
    const int64_t chunks = (e.padded + kChunk - 1) / kChunk;
    w.middle.resize(e.padded);
    w.gap.resize(e.padded);
    std::vector<double> sums(chunks);
    over_chunks(chunks, threads, [&](int, int64_t c) {
        float rad[kChunk];
        const int64_t first = c * kChunk, n = std::min<int64_t>(kChunk, e.padded - first);
        e.kernels->radius(radius, first, n, rad);
        sums[c] = e.kernels->gaps(est + first, rad, n, e.link, static_cast<float>(beta), w.shift, w.slop, &w.middle[first],
                                &w.gap[first]);
    });
    w.sum = std::accumulate(sums.begin(), sums.end(), 0.0);
}

namespace {

// Which classes to take out, the widest gaps first, when `price` rows are paid for each, `left` of its gap stays, and the rest
// is sampled. Guessed.
Wager cheapest(const Executor& e, const Weighed& w, double known, double aim, const Rule& rule, double price, double left) {
    const int64_t chunks = (e.padded + kChunk - 1) / kChunk, stride = chunks < 32 ? 1 : 8, some = (chunks + stride - 1) / stride;
    const double scale = static_cast<double>(chunks) / static_cast<double>(some);
    std::vector<double> count(kBins, 0.0), gaps(kBins, 0.0);
    for (int64_t c = 0; c < chunks; c += stride)
        for (int64_t i = c * kChunk; i < std::min(e.padded, (c + 1) * kChunk); ++i) {
            const int bin = bin_of(w.gap[i]);
            count[bin] += scale;
            gaps[bin] += w.gap[i];
        }
    // Gaps that may have been clamped at exp(88) are always taken.
    const int clamped = bin_of(1e37f);
    double rest = scale * std::accumulate(gaps.begin(), gaps.begin() + clamped, 0.0), rows = 0;
    const double sum = known + w.sum;
    Wager wager;
    for (int b = kBins; b > 0; --b) {
        if (b < kBins) {
            if (w.gap.empty() || (count[b] == 0 && b != clamped)) continue;  // there may be no gap at all
            rows += count[b];
            if (b < clamped) rest -= (1 - left) * gaps[b] * scale;
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
void look_closer(const Executor& e, Look& look, int q, int level, float edge, const Rule& rule, double beta, int threads, Weighed& w, Answer& answer) {
    constexpr int64_t kGrain = 256;
    const float none[kChunk] = {};
    float* est = look.est.data() + q * e.padded;
    std::vector<std::vector<int32_t>> wide(threads);
    over_chunks((e.padded + kChunk - 1) / kChunk, threads, [&](int t, int64_t c) {
        float kept[kChunk], upper[kChunk];
        int32_t ids[kChunk];
        const int64_t first = c * kChunk, n = std::min<int64_t>(kChunk, e.padded - first);
        const int64_t came = e.kernels->survivors(&w.gap[first], none, n, edge, static_cast<int32_t>(first), ids, kept, upper);
        wide[t].insert(wide[t].end(), ids, ids + came);
    });
    const std::vector<int32_t> ids = joined(wide);
    const int64_t count = static_cast<int64_t>(ids.size()), groups = (count + kGrain - 1) / kGrain;
    std::vector<double> moved(groups, 0.0);
    over_chunks(groups, threads, [&](int, int64_t g) {
        const int32_t* some = &ids[g * kGrain];
        const int64_t n = std::min(kGrain, count - g * kGrain), whole = (n + kBlock - 1) / kBlock * kBlock;
        float closer[kGrain], rad[kGrain], middle[kGrain], gap[kGrain];
        std::fill(closer, closer + whole, -std::numeric_limits<float>::infinity());
        std::fill(rad, rad + whole, 0.f);
        for (int64_t i = 0; i < n; ++i) closer[i] = est[some[i]];
        look_deeper(e, look, q, level, some, n, closer, rad);
        for (int64_t i = 0; rule.learned != nullptr && i < n; ++i) rad[i] *= static_cast<float>(rule.learned->narrow[level + 1]);
        e.kernels->gaps(closer, rad, whole, e.link, static_cast<float>(beta), w.shift, w.slop, middle, gap);
        for (int64_t i = 0; i < n; ++i) {
            moved[g] += static_cast<double>(middle[i]) - w.middle[some[i]];
            est[some[i]] = closer[i];
            w.middle[some[i]] = middle[i];
            w.gap[some[i]] = gap[i];
        }
    });
    w.sum += std::accumulate(moved.begin(), moved.end(), 0.0);
    answer.bytes += static_cast<double>(count) * e.deeper[level].bytes;
}

// How much of a gap a deeper level leaves, by the classes that stand for all.
double left_by(const Executor& e, const Look& look, int q, const Rule& rule, size_t level) {
    const DeeperQuery& query = look.prepared.deeper[q * e.deeper.size() + level];
    const Draws* learned = rule.learned;
    const Radius& radius = learned == nullptr ? look.prepared.likely[q] : look.prepared.radius[q];
    const double coarse = learned == nullptr ? 1 : learned->narrow[0], fine = learned == nullptr ? 1 : learned->narrow[level + 1];
    double now = 0, then = 0;
    for (int64_t i = 0; i < 16; ++i) {
        const int64_t id = e.vocab * i / 16;
        const double wide = coarse * radius.at(id), narrow = fine * query.radius.at(id);
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
    Wager wager = cheapest(e, w, exact, aim, rule, 1, 0);
    for (size_t level = 0; look.source == &e.preview && level < e.deeper.size(); ++level) {
        const double price = kCloser * static_cast<double>(e.deeper[level].bytes) / e.row_bytes();
        const Wager closer = cheapest(e, w, exact, aim, rule, price, left_by(e, look, q, rule, level));
        if (closer.cost > 0.8 * wager.cost || !(closer.cost < 0.8 * static_cast<double>(e.vocab))) continue;
        look_closer(e, look, q, static_cast<int>(level), closer.edge, rule, beta, threads, w, answer);
        wager = cheapest(e, w, exact, aim, rule, 1, 0);
    }
    return wager;
}

// Scores the classes with gaps from `edge` on, unless they are more than `most`. `before` gets the sums of the other gaps, run by run.
bool score_widest(const Executor& e, Look& look, int q, float edge, double most, double beta, int threads, Weighed& w,
                  Scratch<double>& before, double* exact, std::vector<Scored>& scored) {
    std::vector<std::vector<Scored>> wide_ids(threads);
    over_chunks((e.padded + kChunk - 1) / kChunk, threads, [&](int t, int64_t c) {
        const int64_t first = c * kChunk, n = std::min<int64_t>(kChunk, e.padded - first);
        int32_t ids[kChunk + kRun];
        const int64_t came = e.kernels->split(&w.gap[first], n, edge, static_cast<int32_t>(first), ids, &before[first / kRun + 1]);
        for (int64_t i = 0; i < came; ++i) wide_ids[t].push_back({ids[i], 0});
    });
    std::vector<Scored> wide = joined(wide_ids);
    if (static_cast<double>(wide.size()) > most) return false;
    score(e, &look.hidden[q * e.dim], wide, threads);
    for (const Scored& s : wide) {
        *exact += std::exp(e.linked(s.z) * beta - w.shift);
        w.sum -= w.middle[s.id];
        look.est[q * e.padded + s.id] = -std::numeric_limits<float>::infinity();
    }
    scored.insert(scored.end(), wide.begin(), wide.end());
    before[0] = 0;
    for (int64_t r = 0; r < e.padded / kRun; ++r) before[r + 1] += before[r];
    w.sum = std::max(w.sum, 0.0);
    return true;
}

}  // namespace headlong
