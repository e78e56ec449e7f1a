// Resolving the ids of one query from what a look at all classes gathered: the k best estimates are scored exactly, their
// worst is the threshold; what can still reach it is looked at level by level, and what is left is scored, best first.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>

#include "executor/verbs.h"
#include "runtime/shared_work.h"

namespace headlong {
namespace {

struct Candidate {
    int32_t id;
    float est, upper, closer;  // closer: the upper end by the deepest look so far
};

// What of the look's survivors still reaches the threshold.
std::vector<Candidate> candidates(const Look& look, int q, int64_t k) {
    std::vector<float> lowers;
    size_t total = 0;
    for (int t = 0; t < look.threads; ++t) {
        const Part& part = look.parts[static_cast<size_t>(q) * look.threads + t];
        lowers.insert(lowers.end(), part.best.kept().begin(), part.best.kept().end());
        total += part.ids.size();
    }
    // The threshold of the look and the k-th lower end: their maximum is the same whichever thread came first, and so is
    // what reaches it.
    float floor = look.threshold[q].load();
    if (static_cast<int64_t>(lowers.size()) >= k) {
        std::nth_element(lowers.begin(), lowers.begin() + (k - 1), lowers.end(), std::greater<float>());
        floor = std::max(floor, lowers[k - 1]);
    }
    std::vector<Candidate> all;
    all.reserve(total);
    for (int t = 0; t < look.threads; ++t) {
        const Part& part = look.parts[static_cast<size_t>(q) * look.threads + t];
        for (size_t i = 0; i < part.ids.size(); ++i)
            if (part.upper[i] >= floor) all.push_back({part.ids[i], part.est[i], part.upper[i], part.upper[i]});
    }
    return all;
}

// The upper ends of some candidates by the next level. `known`, where it is asked for, learns what was read.
void look_closer(const Executor& e, Look& look, int q, int level, Candidate* some, int64_t n, int threads, Known* known) {
    const int64_t grain = 64, groups = (n + grain - 1) / grain;
    over_chunks(groups, groups < 2 ? 1 : threads, [&](int, int64_t g) {
        const int64_t first = g * grain, count = std::min<int64_t>(grain, n - first);
        int32_t ids[grain];
        float closer[grain], rad[grain];
        for (int64_t i = 0; i < count; ++i) {
            ids[i] = some[first + i].id;
            closer[i] = some[first + i].est;
        }
        look_deeper(e, look, q, level, ids, count, closer, rad);
        // The normaliser goes on with the interval of the look at all classes, so only the upper end moves here.
        for (int64_t i = 0; i < count; ++i) some[first + i].closer = std::min(some[first + i].upper, closer[i] + rad[i]);
        for (int64_t i = 0; known != nullptr && i < count; ++i) {
            look.est[q * e.padded + ids[i]] = closer[i];
            known->rad[ids[i]] = rad[i];
            known->depth[ids[i]] = static_cast<uint8_t>(level + 1);
        }
    });
}

}  // namespace

// The k best classes, proved. `scored` gets all rows scored on the way, `est` and `upper` what was thought of them; `known`, with
// the look's kept estimates, what was read of the others.
bool best_of(const Executor& e, Look& look, int q, int64_t k, int threads, std::vector<Scored>& best,
                       std::vector<Scored>& scored, std::vector<float>& est, std::vector<float>& upper,
                       Answer& answer, Known* known) {
    std::vector<Candidate> all = candidates(look, q, k);
    const int64_t sure = std::min<int64_t>(k, static_cast<int64_t>(all.size()));
    if (sure == 0) return true;
    const double* hidden = &look.hidden[q * e.dim];
    const TrueOrder order(*e.kernels, e, hidden);
    auto score_range = [&](size_t from, size_t to) {
        std::vector<Scored> rows(to - from);
        for (size_t i = from; i < to; ++i) rows[i - from] = {all[i].id, 0};
        score(e, hidden, rows, threads);
        for (size_t i = from; i < to; ++i) {
            scored.push_back(rows[i - from]);
            est.push_back(all[i].est);
            upper.push_back(all[i].upper);
        }
        join_best(best, rows, k, order);
    };
    const auto by_est = [](const Candidate& a, const Candidate& b) { return a.est > b.est || (a.est == b.est && a.id < b.id); };
    std::nth_element(all.begin(), all.begin() + (sure - 1), all.end(), by_est);
    std::sort(all.begin(), all.begin() + sure, by_est);
    score_range(0, sure);
    auto open = std::partition(all.begin() + sure, all.end(), [&](const Candidate& c) { return c.upper >= best.back().z; });
    for (size_t level = 0; look.source == &e.preview && level < e.deeper.size(); ++level) {
        const size_t n = open - (all.begin() + sure);
        if (n < 4) break;
        look_closer(e, look, q, static_cast<int>(level), &all[sure], static_cast<int64_t>(n), threads, known);
        answer.bytes += static_cast<double>(n) * e.deeper[level].bytes;
        open = std::partition(all.begin() + sure, open, [&](const Candidate& c) { return c.closer >= best.back().z; });
    }
    const int64_t left = open - (all.begin() + sure);
    // Of a draw, what is scored here is what is drawn from.
    const double share = e.share * static_cast<double>(e.vocab), most = known == nullptr ? std::min(share, bearable_hits(e, look, e.row_bytes())) : share;
    if (left > std::max<int64_t>(static_cast<int64_t>(most), 2 * k)) return false;
    std::sort(all.begin() + sure, open, [](const Candidate& a, const Candidate& b) {
        return a.closer > b.closer || (a.closer == b.closer && a.id < b.id);
    });
    score_from_the_top(
        sure, static_cast<size_t>(open - all.begin()), [&] { return at_once(k); }, [&](size_t i) { return all[i].closer; },
        [&] { return best.back().z; }, score_range);
    order.settle(best);
    return true;
}

// The estimates of `ids` after a deeper level, from those before it, and their radii.
void look_deeper(const Executor& e, const Look& look, int q, int level, const int32_t* ids, int64_t count, float* est, float* rad) {
    const Deeper& from = e.deeper[level];
    const DeeperQuery& query = look.prepared.deeper[q * e.deeper.size() + level];
    constexpr int64_t kGrain = 64;
    int32_t dots[2 * kGrain];
    for (int64_t start = 0; start < count; start += kGrain) {
        const int64_t n = std::min(kGrain, count - start);
        const int32_t* some = ids + start;
        for (int64_t i = 0; i < n; ++i)
            if (!from.adds) est[start + i] = e.preview.base[some[i]] + look.prepared.add[q];
        for (size_t s = 0; s < from.segments.size(); ++s) {
            const Segment& seg = from.segments[s];
            e.kernels->dot_codes(from.codes + seg.first_word, from.bytes, some, n, seg.words, seg.bits, &query.high[seg.first_quad],
                               &query.low[seg.first_quad], dots);
            for (int64_t i = 0; i < n; ++i) {
                const float dot = 256.f * static_cast<float>(dots[2 * i] - query.offset[2 * s]) +
                                  static_cast<float>(dots[2 * i + 1] - query.offset[2 * s + 1]);
                est[start + i] += dot * (from.scale[s * e.padded + some[i]] * query.step[s]);
            }
        }
        for (int64_t i = 0; i < n; ++i) rad[start + i] = query.radius.at(some[i]);
    }
}

void score(const Executor& e, const double* hidden, std::vector<Scored>& rows, int threads) {
    constexpr int64_t kGrain = 32;
    const int64_t n = static_cast<int64_t>(rows.size()), grain = n < 8 * kGrain ? kGrain / 4 : kGrain;
    const bool small = n * e.dim < 16384;
    Turns<int64_t> next;
    run_parallel(small ? 1 : threads, [&](int) {
        int64_t ids[kGrain];
        double z[kGrain];
        for (int64_t start = next.fetch_add(grain); start < n; start = next.fetch_add(grain)) {
            const int64_t count = std::min(grain, n - start);
            for (int64_t i = 0; i < count; ++i) ids[i] = rows[start + i].id;
            e.kernels->dot_rows(e.weight, e.kind, e.dim, ids, count, hidden, z);
            for (int64_t i = 0; i < count; ++i) rows[start + i].z = e.exact(z[i], ids[i]);
        }
    });
}

}  // namespace headlong
