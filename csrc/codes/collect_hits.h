// What a scan collects of its tiles, a collector for each thing that is asked for; here the classes that may be among the k best.
#pragma once

#include <functional>

#include "codes/constants.h"
#include "codes/query_state.h"
#include "executor/largest.h"

namespace headlong {

// One group of queries at a tile: estimates [query][64], radii of the tile and constants, query by query.
struct GroupTile {
    int thread;
    const CodeGroup& group;
    int64_t tile;
    const float *est, *radii, *constants;
};

// A class is a hit if its upper end reaches the k-th largest lower end so far.
class HitCollector {
  public:
    HitCollector(const Codes& codes, const Question& question, const PreparedCodes& all)
        : codes_(codes), question_(question), all_(all), threshold_(lowest_of(all.queries.size())), found_(question.threads, all.queries.size()) {}

    void take(const GroupTile& at) {
        alignas(64) float upper[kMostLanes * kTile];
        uint64_t hits[kMostLanes];
        for (int i = 0; i < at.group.n; ++i)  // of all queries before any is taken: who asks for one at once waits for it
            hits[i] = codes_.scan->reach(at.est + i * kTile, codes_.shares(at.tile), at.radii[i], threshold(at.group.first + i) - at.constants[i], upper + i * kTile);
        for (int i = 0; i < at.group.n; ++i) {
            const int64_t q = at.group.first + i;
            if (hits[i] == 0 || !all_.queries[q].usable) continue;
            Found& own = found_.at(at.thread, q);
            each_bit(hits[i] & allowed_in(question_, q, codes_.rows->vocab, at.tile), [&](int c) {
                const float est = at.est[i * kTile + c], end = upper[i * kTile + c] + at.constants[i];
                own.hits.push_back({static_cast<int32_t>(at.tile * kTile + c), est, end});
                const float lower = est - (question_.delta > 0 ? kNarrow : 1.f) * (end - est);
                if (!own.lower.full() || lower > own.lower.worst()) own.lower.add(lower, static_cast<size_t>(question_.k));
            });
            own.lower.cut(static_cast<size_t>(question_.k));
            if (own.lower.full()) raise_to(threshold_[q], own.lower.worst());
            if (own.hits.size() % 1024 < 32 && own.hits.size() > 1024) {  // the threshold has risen since the first ones came
                const float now = threshold(q);
                own.hits.erase(std::remove_if(own.hits.begin(), own.hits.end(), [&](const Hit& hit) { return hit.upper < now; }), own.hits.end());
            }
        }
    }

    float threshold(int64_t q) const { return threshold_[q].load(std::memory_order_relaxed); }
    std::vector<Hit> of(int64_t q) {
        std::vector<Hit> hits;
        found_.each(q, [&](Found& own) { hits.insert(hits.end(), own.hits.begin(), own.hits.end()); });
        return hits;
    }

  private:
    struct Found {
        std::vector<Hit> hits;
        Largest<float, std::greater<float>> lower;  // the k largest lower ends
    };

    const Codes& codes_;
    const Question& question_;
    const PreparedCodes& all_;
    std::vector<std::atomic<float>> threshold_;  // of each query, as far as the scan is: the k-th largest lower end
    Gathered<Found> found_;
};

}  // namespace headlong
