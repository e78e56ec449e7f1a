// Resolving the ids of one query from what a look at all classes gathered: the k best estimates are scored exactly, their
// worst is the threshold; what can still reach it is scored, best first.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>

#include "executor/verbs.h"
#include "kernels/any_rows.h"
#include "runtime/shared_work.h"

namespace headlong {
namespace {

struct Candidate {
    int32_t id;
    float est, upper;
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
            if (part.upper[i] >= floor) all.push_back({part.ids[i], part.est[i], part.upper[i]});
    }
    return all;
}

}  // namespace

// The k best classes, proved. `scored` gets all rows scored on the way, `est` and `upper` what was thought of them. `drawn`: of a
// draw, what is scored here is what is drawn from.
bool best_of(const Executor& e, Look& look, int q, int64_t k, int threads, std::vector<Scored>& best,
                       std::vector<Scored>& scored, std::vector<float>& est, std::vector<float>& upper, bool drawn) {
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
    const auto open = std::partition(all.begin() + sure, all.end(), [&](const Candidate& c) { return c.upper >= best.back().z; });
    const int64_t left = open - (all.begin() + sure);
    const double share = e.share * static_cast<double>(e.vocab), most = drawn ? share : std::min(share, bearable_hits(e, look, e.row_cost()));
    if (left > std::max<int64_t>(static_cast<int64_t>(most), 2 * k)) return false;
    std::sort(all.begin() + sure, open, [](const Candidate& a, const Candidate& b) {
        return a.upper > b.upper || (a.upper == b.upper && a.id < b.id);
    });
    score_from_the_top(
        sure, static_cast<size_t>(open - all.begin()), [&] { return at_once(k); }, [&](size_t i) { return all[i].upper; },
        [&] { return best.back().z; }, score_range);
    order.settle(best);
    return true;
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
            dot_rows(*e.kernels, e.weight, e.kind, e.dim, ids, count, hidden, z);
            for (int64_t i = 0; i < count; ++i) rows[start + i].z = e.exact(z[i], ids[i]);
        }
    });
}

}  // namespace headlong
