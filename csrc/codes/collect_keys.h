// The keys of draws by the estimates of codes, tile by tile.
#pragma once

#include "codes/collect_hits.h"
#include "sampling/collect_keys.h"

namespace headlong {

class TileKeys {
  public:
    // keep: the estimates, for draws that are made again.
    TileKeys(const Codes& codes, const Question& question, const PreparedCodes& all, bool keep)
        : keys(*codes.rows, question.rules, all.queries.size(), question.threads, !(question.delta > 0)), codes_(codes), question_(question), all_(all) {
        if (keep) estimates_.resize(all.queries.size() * codes.count * kTile);
    }

    void take(const GroupTile& at) {
        for (int i = 0; i < at.group.n; ++i) {
            const int64_t q = at.group.first + i;
            const float* est = at.est + i * kTile;
            if (!estimates_.empty()) std::copy_n(est, kTile, &estimates_[(q * codes_.count + at.tile) * kTile]);
            const Some all{at.tile, est, at.radii[i], at.constants[i], allowed_in(question_, q, codes_.rows->vocab, at.tile), ~uint64_t{0}};
            if (all_.queries[q].usable) take(keys.found(at.thread, q), q, all, 0, keys.draws());
        }
    }
    // Some classes of a tile, and which of them surely count.
    struct Some {
        int64_t tile;
        const float* est;
        float radius, constant;
        uint64_t which, sure;
    };
    void take(std::vector<KeyHit>& hits, int64_t q, const Some& some, int first, int last) {
        if (some.which == 0) return;
        alignas(64) float own[kTile], rad[kTile];
        const auto add = static_cast<float>(all_.queries[q].add);
        const float fixed = some.constant + std::fabs(add) * 0x1p-22f, *shares = codes_.shares(some.tile);  // their sum is rounded once more
        for (int64_t c = 0; c < kTile; ++c) own[c] = some.est[c] + add;
        for (int64_t c = 0; c < kTile; ++c) rad[c] = shares[c] * some.radius + fixed + std::fabs(own[c]) * 0x1p-23f;
        for (int64_t c = 0; c < kTile && some.which != ~uint64_t{0}; ++c)
            if ((some.which >> c & 1) == 0) own[c] = -std::numeric_limits<float>::infinity(), rad[c] = 0;
        keys.take(hits, q, some.tile * kTile, kTile, own, rad, first, last, [&](int64_t c) { return (some.sure >> c & 1) != 0; });
    }

    const float* estimates(int64_t q) const { return estimates_.data() + q * codes_.count * kTile; }

    KeyCollector keys;

  private:
    const Codes& codes_;
    const Question& question_;
    const PreparedCodes& all_;
    Scratch<float> estimates_{};  // [query][class]
};

}  // namespace headlong
