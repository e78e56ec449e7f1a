// The largest keys link(z) / T + gumbel of all classes, from intervals of their logits: during a scan of estimates the classes are kept whose
// upper ends reach the largest lower end so far; of these, largest upper ends first, rows are scored until none can be larger.
#pragma once

#include <unordered_map>

#include "executor/executor.h"
#include "executor/verbs.h"
#include "runtime/shared_work.h"

namespace headlong {

// A class that may have the largest key of a draw, and what its key is at the most.
struct KeyHit {
    int32_t id;
    uint32_t draw;
    float upper;
};

class KeyCollector {
  public:
    // As many draws by each of `n` rules; proved: the intervals are.
    KeyCollector(const Executor& e, const SampleRule* rules, int64_t n, int threads, bool proved)
        : e_(e), rules_(rules), draws_(rules->n), proved_(proved), least_(lowest_of(n * draws_)), found_(threads, n) {}

    int draws() const { return draws_; }
    std::vector<KeyHit>& found(int thread, int64_t q) { return found_.at(thread, q); }

    // Classes first .. first + n - 1, no more than kChunk, for some draws of query q; est: -inf where none is. Those with a lower end that is
    // not `sure` to be one of a class that counts raise no threshold.
    template <typename Sure>
    void take(std::vector<KeyHit>& hits, int64_t q, int64_t first, int64_t n, const float* est, const float* rad, int from, int to, const Sure& sure) {
        alignas(64) float upper[kChunk];
        uint32_t words[kChunk + kBlock];
        const SampleRule& rule = rules_[q];
        const int64_t lead = rule.class0 & 3;  // noise() starts at a multiple of four
        for (int d = from; d < to; ++d) {
            const auto draw = static_cast<uint32_t>(d);
            e_.kernels->noise(rule.seed, rule.row0, draw, first + rule.class0 - lead, n + (lead != 0 ? kBlock : 0), words);
            float now = least(q, d);
            if (e_.kernels->gumbel_keys(est, rad, words + lead, n, e_.link, static_cast<float>(1 / rule.temperature), upper) < now) continue;
            for (int64_t c = 0; c < n; ++c) {
                if (!(upper[c] >= now)) continue;
                if (hits.size() % 4096 == 0 && !hits.empty()) drop_low(q, hits);  // thresholds have risen since the first ones came
                hits.push_back({static_cast<int32_t>(first + c), draw, upper[c]});
                if (!sure(c)) continue;
                const double at = static_cast<double>(est[c]) - rad[c], low = e_.linked(at) / rule.temperature + gumbel(rule.seed, rule.row0, draw, rule.name(first + c));
                raise_to(least_[q * draws_ + d], static_cast<float>(low - std::fabs(low) * 0x1p-20 - key_error(rule)));
                now = least(q, d);
            }
        }
    }

    // The largest key of a draw from classes that may have it, of those that `counts` leaves; score(rows) says what rows come to, and `known` what
    // they came to before. False where it may be another's, or beyond float32.
    template <typename Score, typename Counts>
    bool largest(int64_t q, int draw, std::vector<KeyHit> hits, std::unordered_map<int64_t, double>& known, const Score& score, const Counts& counts, Draw& out) const {
        constexpr int64_t at_once = 8;
        const SampleRule& rule = rules_[q];
        std::sort(hits.begin(), hits.end(), [](const KeyHit& a, const KeyHit& b) { return a.upper > b.upper || (a.upper == b.upper && a.id < b.id); });
        Draw best;
        for (auto next = hits.begin(); next != hits.end() && !(next->upper < best.score);) {
            const auto end = next + std::min<int64_t>(at_once, hits.end() - next);
            std::vector<Scored> rows;
            for (auto hit = next; hit != end; ++hit)
                if (known.count(hit->id) == 0) rows.push_back({hit->id, 0});
            score(rows);
            for (const Scored& row : rows) known[row.id] = row.z;
            for (; next != end; ++next) {
                const Scored one{next->id, known[next->id]};
                if (!(one.z > -kInf) || !counts(one)) continue;
                const double key = e_.linked(one.z) / rule.temperature + gumbel(rule.seed, rule.row0, static_cast<uint32_t>(draw), rule.name(one.id));
                if (best.id < 0 || key > best.score || (key == best.score && one.id < best.id)) best = {one.id, one.z, key, proved_};
            }
        }
        // A class that raised the threshold may be below its lower end; who stayed below the threshold is below what was scored, or is not ruled out.
        if (best.id < 0 || !(best.score >= least(q, draw)) || !(std::fabs(best.score) < kMostShift)) return false;
        out = best;
        return true;
    }
    // The same of every draw of a query; false also where more than `most` classes a draw would have to be scored.
    template <typename Score>
    bool largest_of_all(int64_t q, int64_t most, const Score& score, Draw* out) {
        std::vector<KeyHit> hits;
        found_.each(q, [&](const std::vector<KeyHit>& own) { hits.insert(hits.end(), own.begin(), own.end()); });
        drop_low(q, hits);
        if (static_cast<int64_t>(hits.size()) > draws_ * most) return false;
        std::vector<std::vector<KeyHit>> of(draws_);
        for (const KeyHit& hit : hits) of[hit.draw].push_back(hit);
        std::unordered_map<int64_t, double> known;
        for (int draw = 0; draw < draws_; ++draw)
            if (!largest(q, draw, std::move(of[draw]), known, score, [](const Scored&) { return true; }, out[draw])) return false;
        return true;
    }

    // Another draw begins in the place of one.
    void restart(int64_t q, int draw) { least_[q * draws_ + draw].store(std::numeric_limits<float>::lowest()); }
    void drop_low(int64_t q, std::vector<KeyHit>& hits) const {
        hits.erase(std::remove_if(hits.begin(), hits.end(), [&](const KeyHit& hit) { return hit.upper < least(q, static_cast<int>(hit.draw)); }), hits.end());
    }

  private:
    float least(int64_t q, int draw) const { return least_[q * draws_ + draw].load(std::memory_order_relaxed); }
    // What the table that stands for a link may be off, in keys.
    double key_error(const SampleRule& rule) const { return e_.link.form == LinkForm::table ? e_.link_b / rule.temperature : 0; }

    const Executor& e_;
    const SampleRule* rules_;
    int draws_;
    bool proved_;
    std::vector<std::atomic<float>> least_;  // [query][draw]: the largest lower end of a key
    Gathered<std::vector<KeyHit>> found_;
};

}  // namespace headlong
