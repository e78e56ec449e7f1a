// The classes that may have the largest key link(z) / T + gumbel of a draw: those whose upper ends reach the largest lower end so far.
#pragma once

#include "codes/collect_hits.h"

namespace headlong {

struct KeyHit {
    int32_t id;
    uint32_t draw;
    float upper;
};

class KeyCollector {
  public:
    // draws: of each query; keep: the estimates, for draws that are made again.
    KeyCollector(const Codes& codes, const Question& question, const PreparedCodes& all, int draws, bool keep)
        : codes_(codes), question_(question), all_(all), draws_(draws), least_(lowest_of(all.queries.size() * draws)), found_(question.threads, all.queries.size()) {
        if (keep) estimates_.resize(all.queries.size() * codes.count * kTile);
    }

    void take(const GroupTile& at) {
        for (int i = 0; i < at.group.n; ++i) {
            const int64_t q = at.group.first + i;
            const float* est = at.est + i * kTile;
            if (!estimates_.empty()) std::copy_n(est, kTile, &estimates_[(q * codes_.count + at.tile) * kTile]);
            const Some all{at.tile, est, at.radii[i], at.constants[i], allowed_in(question_, q, codes_.rows->vocab, at.tile), ~uint64_t{0}};
            if (all_.queries[q].usable) take(found_.at(at.thread, q), q, all, 0, draws_);
        }
    }
    // Some classes of a tile; the least that a largest key has goes by those that are `sure`.
    struct Some {
        int64_t tile;
        const float* est;
        float radius, constant;
        uint64_t which, sure;
    };
    void take(std::vector<KeyHit>& hits, int64_t q, const Some& some, int first, int last) {
        if (some.which == 0) return;
        const Executor& e = *codes_.rows;
        alignas(64) float own[kTile], rad[kTile], upper[kTile];
        uint32_t words[kTile + kBlock];
        const auto add = static_cast<float>(all_.queries[q].add);
        const float fixed = some.constant + std::fabs(add) * 0x1p-22f, *shares = codes_.shares(some.tile);  // their sum is rounded once more
        for (int64_t c = 0; c < kTile; ++c) own[c] = some.est[c] + add;
        for (int64_t c = 0; c < kTile; ++c) rad[c] = shares[c] * some.radius + fixed + std::fabs(own[c]) * 0x1p-23f;
        for (int64_t c = 0; c < kTile && some.which != ~uint64_t{0}; ++c)
            if ((some.which >> c & 1) == 0) own[c] = -std::numeric_limits<float>::infinity(), rad[c] = 0;
        const SampleRule& rule = question_.rules[q];
        const int64_t lead = rule.class0 & 3;  // noise() starts at a multiple of four
        for (int d = first; d < last; ++d) {
            e.kernels->noise(rule.seed, rule.row0, static_cast<uint32_t>(d), some.tile * kTile + rule.class0 - lead, kTile + (lead != 0 ? kBlock : 0), words);
            float now = least(q, d);
            if (e.kernels->gumbel_keys(own, rad, words + lead, kTile, e.link, static_cast<float>(1 / rule.temperature), upper) < now) continue;
            for (int64_t c = 0; c < kTile; ++c) {
                if (!(upper[c] >= now)) continue;
                const int64_t id = some.tile * kTile + c;
                if (hits.size() % 4096 == 0 && !hits.empty()) drop_low(q, hits);  // thresholds have risen since the first ones came
                hits.push_back({static_cast<int32_t>(id), static_cast<uint32_t>(d), upper[c]});
                if ((some.sure >> c & 1) == 0) continue;
                const double at = static_cast<double>(own[c]) - rad[c], low = e.linked(at) / rule.temperature + gumbel(rule.seed, rule.row0, static_cast<uint32_t>(d), rule.name(id));
                raise_to(least_[q * draws_ + d], static_cast<float>(low - std::fabs(low) * 0x1p-20 - key_error(rule)));
                now = least(q, d);
            }
        }
    }

    int draws() const { return draws_; }
    const float* estimates(int64_t q) const { return estimates_.data() + q * codes_.count * kTile; }
    float least(int64_t q, int draw) const { return least_[q * draws_ + draw].load(std::memory_order_relaxed); }
    // Another draw begins in the place of one.
    void restart(int64_t q, int draw) { least_[q * draws_ + draw].store(std::numeric_limits<float>::lowest()); }
    // Of all threads, those that still reach the least.
    std::vector<KeyHit> of(int64_t q) {
        std::vector<KeyHit> hits;
        found_.each(q, [&](std::vector<KeyHit>& own) { hits.insert(hits.end(), own.begin(), own.end()); });
        drop_low(q, hits);
        return hits;
    }
    void drop_low(int64_t q, std::vector<KeyHit>& hits) const {
        hits.erase(std::remove_if(hits.begin(), hits.end(), [&](const KeyHit& hit) { return hit.upper < least(q, static_cast<int>(hit.draw)); }), hits.end());
    }

  private:
    // What the table that stands for a link may be off, in keys.
    double key_error(const SampleRule& rule) const { return codes_.rows->link.form == LinkForm::table ? codes_.rows->link_b / rule.temperature : 0; }

    const Codes& codes_;
    const Question& question_;
    const PreparedCodes& all_;
    int draws_;
    std::vector<std::atomic<float>> least_;  // [query][draw]: the largest lower end of a key
    Gathered<std::vector<KeyHit>> found_;
    Scratch<float> estimates_{};  // [query][class]
};

}  // namespace headlong
