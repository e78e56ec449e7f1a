// The normaliser by a bet. Every class has a middle b = exp(estimate) and a gap u that its term is no further away from b:
//
//     sum of terms = exact + sum b + (sum u) * E[X],    X = (term - b) / u in [-1, 1] of a class drawn in proportion to u
//
// The classes with the widest gaps are scored or looked at more closely; the others are sampled, and a bet against every
// other mean of X wins quickly (Waudby-Smith and Ramdas 2023, "Estimating means of bounded random variables by betting").
//
// How many rows to score, and whether a deeper level pays, is guessed from every eighth chunk; what is drawn, with which
// probability, and what the bet decides is exact.
#include <algorithm>
#include <numeric>

#include "normaliser/betting.h"
#include "normaliser/histogram.h"
#include "runtime/trace.h"

namespace headlong {
namespace {

constexpr double kSpread = 0.02;       // the mean of X^2 that is expected before anything is drawn

template <typename T>
std::vector<T> joined(const std::vector<std::vector<T>>& each) {
    std::vector<T> all;
    for (const std::vector<T>& one : each) all.insert(all.end(), one.begin(), one.end());
    return all;
}

// The middles and gaps of all classes, and the sums of the middles chunk by chunk.
void weigh(const Executor& e, const Look& look, int q, double beta, int threads, Weighed& w) {
    const float* est = look.est.data() + q * e.padded;
    const int64_t chunks = (e.padded + kChunk - 1) / kChunk;
    w.middle.resize(e.padded);
    w.gap.resize(e.padded);
    std::vector<double> sums(chunks);
    over_chunks(chunks, threads, [&](int, int64_t c) {
        float rad[kChunk];
        const int64_t first = c * kChunk, n = std::min<int64_t>(kChunk, e.padded - first);
        e.kernels->radius(look.prepared.likely[q], first, n, rad);
        sums[c] = e.kernels->gaps(est + first, rad, n, e.link, static_cast<float>(beta), w.shift, w.slop, &w.middle[first],
                                &w.gap[first]);
    });
    w.sum = std::accumulate(sums.begin(), sums.end(), 0.0);
}

// Which classes to take out, the widest gaps first, when `price` rows are paid for each, `left` of its gap stays, and the rest
// is sampled. Guessed.
Wager cheapest(const Executor& e, const Weighed& w, double known, double aim, double odds, double price, double left) {
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
            if (w.gap.empty() || count[b] == 0) continue;
            rows += count[b];
            if (b < clamped) rest -= (1 - left) * gaps[b] * scale;
        }
        const double cost = price * rows + draws_for(odds, aim * sum / std::max(rest, 1e-300), kSpread) + 64;
        if (b <= clamped && cost < wager.cost) {
            wager.cost = cost;
            wager.edge = edge_of(b);
        }
    }
    return wager;
}

// Brings the classes with gaps from `edge` on to a deeper level.
void look_closer(const Executor& e, Look& look, int q, int level, float edge, double beta, int threads, Weighed& w, Answer& answer) {
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
double left_by(const Executor& e, const Look& look, int q, size_t level) {
    const DeeperQuery& query = look.prepared.deeper[q * e.deeper.size() + level];
    const Radius& radius = look.prepared.likely[q];
    double now = 0, then = 0;
    for (int64_t i = 0; i < 16; ++i) {
        const int64_t id = e.vocab * i / 16;
        const float wide = radius.at(id), narrow = query.radius.at(id);
        if (!(wide < 20)) continue;
        now += std::expm1(wide);
        then += std::expm1(narrow);
    }
    return now > 0 ? std::min(1.0, then / now) : 1;
}

// Brings the widest on to the deeper levels that pay; what is left to be scored then.
Wager look_where_it_pays(const Executor& e, Look& look, int q, double exact, double aim, double odds, double beta, int threads,
                         Weighed& w, Answer& answer) {
    Wager wager = cheapest(e, w, exact, aim, odds, 1, 0);
    for (size_t level = 0; look.source == &e.preview && level < e.deeper.size(); ++level) {
        const double price = kCloser * static_cast<double>(e.deeper[level].bytes) / e.row_bytes();
        const Wager closer = cheapest(e, w, exact, aim, odds, price, left_by(e, look, q, level));
        if (closer.cost > 0.8 * wager.cost || !(closer.cost < 0.8 * static_cast<double>(e.vocab))) continue;
        look_closer(e, look, q, static_cast<int>(level), closer.edge, beta, threads, w, answer);
        wager = cheapest(e, w, exact, aim, odds, 1, 0);
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

}  // namespace

Status bet(const Executor& e, Look& look, int q, const Question& question, int threads, std::vector<Scored>& scored,
                     Interval& lse, Answer& answer) {
    Weighed w;
    double exact = take_out(e, look, q, scored, question.beta, &w.shift);
    const double fixed = float_error(e, w.shift, question.beta) + dot_error(e, &look.hidden[q * e.dim]);
    const double aim = question.eps - fixed, odds = 2 / question.delta, most = e.share * static_cast<double>(e.vocab);
    if (aim <= 0) return refine(e, look, q, question, threads, scored, lse, answer);
    w.slop = static_cast<float>(0x1p-14 + 2 * fixed);
    weigh(e, look, q, question.beta, threads, w);
    mark("bet: weighing");
    const Wager wager = look_where_it_pays(e, look, q, exact, aim, odds, question.beta, threads, w, answer);
    mark("bet: closer looks");
    if (!(wager.cost < most)) return Status::dear;
    Scratch<double> before(e.padded / kRun + 1);
    if (!score_widest(e, look, q, wager.edge, 2 * most + 4096, question.beta, threads, w, before, &exact, scored)) return Status::dear;
    mark("bet: widest rows");
    const double total = before[e.padded / kRun], known = exact + w.sum;
    if (out_of_range(exact, known)) return Status::dear;
    if (!(total > 0)) {
        lse = {w.shift + std::log(known), fixed};
        return Status::done;
    }
    const uint64_t key = key_of(e, look, q, question);
    const auto term = [&](const Scored& s) { return std::exp(e.linked(s.z) * question.beta - w.shift); };
    Bet bet{known, total, aim, odds};
    double draws = 0.7 * draws_for(odds, aim * known / total, kSpread);
    for (uint32_t round = 0; round < 16; ++round) {
        if (static_cast<double>(bet.drawn.size()) + draws > most + 4096) return Status::dear;
        if (draws > 0)
            for (double x : sample_terms(e, look, q, w, before, key, round, static_cast<int64_t>(draws) + 16, threads, term, answer))
                bet.add(x);
        if (bet.won()) {
            lse = {w.shift + std::log(bet.middle()), question.eps};
            return Status::done;
        }
        draws = std::max(1.1 * bet.wanted() - bet.count(), 16 + 0.2 * bet.count());
    }
    return Status::dear;
}

// Draws are made from the question's seed and the query's content: the same query has the same answer.
uint64_t key_of(const Executor& e, const Look& look, int q, const Question& question) {
    uint64_t part[4];  // side by side: each waits for its last
    for (uint64_t i = 0; i < 4; ++i) part[i] = question.seed + i;
    for (int64_t j = 0; j < e.dim; ++j) {
        uint64_t word;
        std::memcpy(&word, &look.hidden[q * e.dim + j], 8);
        part[j % 4] = mix(part[j % 4] ^ word) + 0x9E3779B97F4A7C15u;
    }
    return mix(mix(mix(part[0]) ^ part[1]) ^ part[2]) ^ part[3];
}

// X = (term - middle) / gap of `count` classes drawn in proportion to their gaps, `before` being the sums of those of the runs of
// classes.
std::vector<double> sample_terms(const Executor& e, const Look& look, int q, const Weighed& w, const Scratch<double>& before, uint64_t key,
                                           uint32_t round, int64_t count, int threads, const TermOf& term, Answer& answer) {
    const int64_t runs = e.padded / kRun;
    std::vector<Scored> distinct;
    std::vector<int32_t> times;
    int64_t run = 0, place = 0;
    double sum = 0;  // of the classes of the run before `place`, and those of the runs before
    for (double point : sorted_points(*e.kernels, key, round, count, before[runs])) {
        for (; run + 1 < runs && before[run + 1] <= point; ++run) place = 0;
        if (place == 0) sum = before[run];
        int64_t last = -1;  // where roundings lead beyond the run, its last class that has any mass
        for (int64_t i = run * kRun + place; i < (run + 1) * kRun; ++i) {
            if (!(w.gap[i] > 0)) continue;
            last = i;
            if (point < sum + w.gap[i]) break;
            if (i + 1 < (run + 1) * kRun) sum += w.gap[i], place = i + 1 - run * kRun;
        }
        if (last < 0)
            for (last = run * kRun + place; last > 0 && !(w.gap[last] > 0);) --last;
        if (distinct.empty() || distinct.back().id != last) distinct.push_back({last, 0}), times.push_back(0);
        ++times.back();
    }
    score(e, &look.hidden[q * e.dim], distinct, threads);
    answer.bytes += static_cast<double>(distinct.size()) * e.row_bytes();
    answer.rows += static_cast<int64_t>(distinct.size());
    std::vector<double> drawn;
    drawn.reserve(count);
    for (size_t d = 0; d < distinct.size(); ++d) {
        const int64_t id = distinct[d].id;
        const double x = (term(distinct[d]) - w.middle[id]) / w.gap[id];
        drawn.insert(drawn.end(), times[d], x);
    }
    return drawn;
}

}  // namespace headlong
