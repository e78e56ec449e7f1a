// AdaptiveSoftmax (Baharav et al., 2024), stage for stage that of engines/methods/adaptive.py, which says what is computed and why.
//
//   est_i = sum_j c_j w_ij,   var_i = sum_j d_j w_ij^2     over the first m coordinates of the order,  c = x / q,  d = c^2 (1 - q)
//
// q, and with it every weight, changes with m, so a longer prefix is summed anew. Two things keep that from reading it anew: a group
// of 64 classes is taken through its prefixes while its columns are in the cache, and a prefix that one class shows to be too short
// for all is passed over. Sums are float32, exponentials float64.
#include "adaptive/search.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>

#include "runtime/pool.h"
#include "runtime/shared_work.h"

namespace headlong {
namespace {

using Arms = std::vector<uint64_t>;  // [groups]: a bit for every class that takes part

template <typename Work>
void each_arm(uint64_t mask, const Work& work) {
    for (; mask != 0; mask &= mask - 1) work(__builtin_ctzll(mask));
}

int64_t count_of(const Arms& arms) {
    int64_t count = 0;
    for (const uint64_t mask : arms) count += __builtin_popcountll(mask);
    return count;
}

// The next prefix: the first of ceil(16 * 1.5^i) above m.
int64_t following(int64_t m, int64_t most) {
    double length = 16;
    while (std::ceil(length) <= static_cast<double>(m)) length *= 1.5;
    return std::min(most, static_cast<int64_t>(std::ceil(length)));
}

// One query, and one state of its samples: no stage reads anew what another has read.
class Search {
  public:
    Search(const Columns& layer, const AdaptiveRules& rules, const uint8_t* mask, const double* hidden, uint64_t seed, uint64_t key, int threads)
        : layer_(layer), rules_(rules), hidden_(hidden), threads_(threads), live_(layer.groups(), 0), est_(layer.groups() * kGroup),
          var_(est_.size()), pulls_(est_.size(), 0) {
        for (int64_t i = 0; i < layer.vocab; ++i) {
            live_[i / kGroup] |= static_cast<uint64_t>(mask == nullptr || mask[i] != 0) << i % kGroup;
            est_[i] = static_cast<float>(layer.base(i));
        }
        classes_ = count_of(live_);
        stage_ = rules.delta / 2;
        logs_ = std::log(6 * static_cast<double>(classes_) / stage_);
        order(seed, key);
        std::fill(var_.begin(), var_.end(), size() > 0 ? std::numeric_limits<float>::infinity() : 0.f);
        const double warm = rules.warm * static_cast<double>(size());
        warm_most_ = std::min(size(), std::max<int64_t>(1, static_cast<int64_t>(warm)));
        list_prefixes();
    }

    FoundByColumns answer(float* estimates) {
        FoundByColumns found;
        found.full = classes_ * size();
        found.lse = -kInf;
        if (classes_ > 0) {
            const int64_t warm = together(live_, 0, 1 / (17 * logs_), rules_.sum, warm_most_);
            for (const int64_t i : best_arms(warm)) {
                found.best.push_back({i, layer_.logit(hidden_, i)});
                est_[i] = static_cast<float>(found.best.back().z);  // from here on its variance is 0
                var_[i] = 0;
                pulls_[i] = static_cast<int32_t>(size());
            }
            std::sort(found.best.begin(), found.best.end(), better);
            refine();
            found.lse = normaliser();
            for (int64_t group = 0; group < layer_.groups(); ++group)
                each_arm(live_[group], [&](int64_t i) { found.pulls += pulls_[group * kGroup + i]; });
        }
        for (int64_t i = 0; estimates != nullptr && i < layer_.vocab; ++i)
            estimates[i] = live_[i / kGroup] >> i % kGroup & 1 ? est_[i] : -std::numeric_limits<float>::infinity();
        return found;
    }

  private:
    struct Weights {
        std::once_flag once;
        std::vector<float> c, d;
    };

    int64_t size() const { return static_cast<int64_t>(ids_.size()); }  // coordinates that can be drawn

    // Coordinates by descending key, those of no weight left out.
    void order(uint64_t seed, uint64_t key) {
        const int64_t padded = (layer_.dim + 3) / 4 * 4;
        std::vector<uint32_t> high(padded), low(padded);
        layer_.kernels->noise(seed, key, 0, 0, padded, high.data());
        layer_.kernels->noise(seed, key, 0x80000000u, 0, padded, low.data());
        struct Item {
            double key, share;
            int32_t id;
        };
        std::vector<Item> items;
        double total = 0;
        const auto heavy = [&](int64_t j) { return layer_.column_weight[j] * std::fabs(hidden_[j] * layer_.a); };
        for (int64_t j = 0; j < layer_.dim; ++j) total += heavy(j);
        for (int64_t j = 0; j < layer_.dim; ++j) {
            if (!(heavy(j) > 0)) continue;
            const uint64_t word = static_cast<uint64_t>(high[j]) << 32 | low[j];
            const double e = word >> 63 ? -std::log1p(-((static_cast<double>(~word) + 0.5) * 0x1p-64))
                                        : -std::log((static_cast<double>(word) + 0.5) * 0x1p-64);
            const double share = std::log(heavy(j)) - std::log(total);
            items.push_back({share - std::log(e), share, static_cast<int32_t>(j)});
        }
        std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.key > b.key; });
        for (const Item& item : items) {
            ids_.push_back(item.id);
            x_.push_back(hidden_[item.id] * layer_.a);
            shares_.push_back(item.share);
            keys_.push_back(item.key);
        }
    }

    // Every length that a prefix can have: those of a race, and those that go on from the warm-up's last.
    void list_prefixes() {
        for (const int64_t from : {int64_t{0}, warm_most_}) {
            if (from > 0) lengths_.push_back(from);
            for (int64_t m = from; m < size();) lengths_.push_back(m = following(m, size()));
        }
        std::sort(lengths_.begin(), lengths_.end());
        lengths_.erase(std::unique(lengths_.begin(), lengths_.end()), lengths_.end());
        weights_ = std::make_unique<Weights[]>(lengths_.size());
    }

    const Weights& weights(int64_t m) {
        Weights& found = weights_[std::lower_bound(lengths_.begin(), lengths_.end(), m) - lengths_.begin()];
        std::call_once(found.once, [&] {
            for (int64_t j = 0; j < m; ++j) {
                const double over = m < size() ? shares_[j] - keys_[m] : 4;  // beyond 4 the chance is 1 to the last digit
                const double q = over < 4 ? -std::expm1(-std::exp(over)) : 1.0, scaled = x_[j] / q;
                found.c.push_back(static_cast<float>(scaled));
                found.d.push_back(static_cast<float>(scaled * scaled * (1 - q)));
            }
        });
        return found;
    }

    // The first m coordinates of some classes of a group.
    void pull(int64_t group, uint64_t arms, int64_t m) {
        const Weights& weight = weights(m);
        for (int64_t block = 0; block < kGroup; block += kAbreast) {
            if ((arms >> block & 0xFFFF) == 0) continue;
            const float* from = layer_.columns + group * layer_.dim * kGroup + block;
            float est[kAbreast], var[kAbreast];
            prefix_sums(from, ids_.data(), weight.c.data(), weight.d.data(), m, est, var);
            each_arm(arms >> block & 0xFFFF, [&](int64_t i) {
                const int64_t id = group * kGroup + block + i;
                est_[id] = static_cast<float>(layer_.base(id) + est[i]);
                var_[id] = var[i];
                pulls_[id] = static_cast<int32_t>(m);
            });
        }
    }

    // work(group) for every group with a class in `arms`.
    void over_groups(const Arms& arms, const std::function<void(int64_t)>& work) {
        constexpr int64_t kRun = 8;  // groups that a thread takes at once
        const int64_t groups = layer_.groups(), busy = groups - std::count(arms.begin(), arms.end(), 0);
        Turns<int64_t> next;
        run_parallel(static_cast<int>(std::min<int64_t>(threads_, std::max<int64_t>(1, busy / kRun))), [&](int) {
            for (int64_t at; (at = next.fetch_add(kRun)) < groups;)
                for (int64_t group = at; group < std::min(groups, at + kRun); ++group)
                    if (arms[group] != 0) work(group);
        });
    }

    template <typename Work>
    void over_arms(const Arms& arms, const Work& work) const {
        for (int64_t group = 0; group < layer_.groups(); ++group)
            each_arm(arms[group], [&](int64_t i) { work(group * kGroup + i); });
    }

    // All of `arms` to the same prefix, from m coordinates on, until no variance is above the target; returns its length.
    int64_t together(const Arms& arms, int64_t m, double target, double multiplier, int64_t most) {
        while (m < most) {
            int64_t widest = -1;
            over_arms(arms, [&](int64_t id) { widest = widest < 0 || var_[id] > var_[widest] ? id : widest; });
            if (widest < 0 || !(multiplier * var_[widest] > target)) break;
            for (;;) {  // one class that is still too wide sends all of them on
                m = following(m, most);
                if (m >= most) break;
                pull(widest / kGroup, uint64_t{1} << widest % kGroup, m);
                if (!(multiplier * var_[widest] > target)) break;
            }
            over_groups(arms, [&](int64_t group) { pull(group, arms[group], m); });
        }
        return m;
    }

    // Goes on from the samples of the warm-up.
    std::vector<int64_t> best_arms(int64_t m) {
        const auto k = static_cast<size_t>(rules_.k);
        const double spread = std::max(std::log(static_cast<double>(std::max<int64_t>(size(), 2))), 1.0);
        const double square = 2 * rules_.arm * std::log(6 * static_cast<double>(classes_) * spread / stage_);
        const auto half = [&](int64_t id) { return std::sqrt(square * var_[id]); };
        const auto above = [&](int64_t a, int64_t b) { return est_[a] > est_[b] || (est_[a] == est_[b] && a < b); };
        Arms arms = live_;
        std::vector<int64_t> ids, keep;
        over_arms(arms, [&](int64_t id) { ids.push_back(id); });
        for (double target = rules_.width / 4; ids.size() > k; target /= 2) {
            m = together(arms, m, target, rules_.arm, size());
            const double floor = lower_end(ids, half);
            keep.clear();
            float widest = 0;
            for (const int64_t id : ids) {
                if (!(est_[id] + half(id) >= floor)) continue;
                keep.push_back(id);
                widest = std::max(widest, var_[id]);
            }
            const bool over = keep.size() <= k || m >= size(), tied = keep.size() == ids.size() && !(widest > 0);
            // the authors take the k of the round before; what was kept is all that can be among them
            if (!(over && rules_.published) && keep.size() >= k) ids = keep;
            if (over || tied) break;
            std::fill(arms.begin(), arms.end(), 0);
            for (const int64_t id : ids) arms[id / kGroup] |= uint64_t{1} << id % kGroup;
        }
        const size_t some = std::min(k, ids.size());
        std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(some), ids.end(), above);
        ids.resize(some);
        return ids;
    }

    // The k-th largest lower end; as published: that of the best estimate.
    template <typename Half>
    double lower_end(const std::vector<int64_t>& ids, const Half& half) const {
        if (rules_.published) {
            const int64_t best = *std::max_element(ids.begin(), ids.end(), [&](int64_t a, int64_t b) { return est_[a] < est_[b]; });
            return est_[best] - half(best);
        }
        std::vector<double> low;
        for (const int64_t id : ids) low.push_back(est_[id] - half(id));
        const auto place = low.begin() + rules_.k - 1;
        std::nth_element(low.begin(), place, low.end(), std::greater<double>());
        return *place;
    }

    // Every class to min(sum(gamma) / (c1 gamma_i), sum(alpha) / (c2 alpha_i)). The weights come from the lower ends of the samples as
    // they are now: the winners have no width.
    void refine() {
        std::vector<double> root(est_.size(), 0.0);  // exp(half the lower end of a logit): the square root of a class's weight
        double top = -kInf, alpha = 0, gamma = 0;
        over_arms(live_, [&](int64_t id) {
            root[id] = est_[id] - std::sqrt(2 * logs_ * rules_.sum * var_[id]);
            top = std::max(top, root[id]);
        });
        over_groups(live_, [&](int64_t group) {
            each_arm(live_[group], [&](int64_t i) { root[group * kGroup + i] = std::exp((root[group * kGroup + i] - top) / 2); });
        });
        over_arms(live_, [&](int64_t id) { gamma += root[id], alpha += root[id] * root[id]; });
        const double second = 16 * std::sqrt(2.0) * logs_ / rules_.eps * gamma * gamma / alpha;
        const double first = 16 * std::log(12 / stage_) / (rules_.eps * rules_.eps);
        over_groups(live_, [&](int64_t group) {
            const auto wide = [&](int64_t id) {
                const double limit = std::min(gamma / (second * root[id]), alpha / (first * root[id] * root[id]));
                return pulls_[id] < size() && rules_.sum * var_[id] > limit;
            };
            for (uint64_t left = live_[group]; left != 0;) {  // classes of one length go on together, the shortest first
                int64_t shortest = size();
                uint64_t open = 0, some = 0;
                each_arm(left, [&](int64_t i) {
                    const int64_t id = group * kGroup + i;
                    if (!wide(id)) return;
                    open |= uint64_t{1} << i;
                    if (pulls_[id] < shortest) shortest = pulls_[id], some = 0;
                    if (pulls_[id] == shortest) some |= uint64_t{1} << i;
                });
                if (some != 0) pull(group, some, following(shortest, size()));
                left = open;
            }
        });
    }

    double normaliser() {
        std::vector<double> parts(layer_.groups(), 0.0);
        double peak = -kInf, total = 0;
        over_arms(live_, [&](int64_t id) { peak = std::max<double>(peak, est_[id]); });
        if (!(peak > -kInf)) return -kInf;
        over_groups(live_, [&](int64_t group) {
            each_arm(live_[group], [&](int64_t i) { parts[group] += std::exp(est_[group * kGroup + i] - peak); });
        });
        for (const double part : parts) total += part;
        return peak + std::log(total);
    }

    const Columns& layer_;
    const AdaptiveRules& rules_;
    const double* hidden_;
    const int threads_;
    Arms live_;
    std::vector<float> est_, var_;
    std::vector<int32_t> pulls_;
    int64_t classes_ = 0, warm_most_ = 0;
    double stage_ = 0, logs_ = 0;  // delta', ln(6 V / delta')
    std::vector<int32_t> ids_;
    std::vector<double> x_, shares_, keys_;
    std::vector<int64_t> lengths_;
    std::unique_ptr<Weights[]> weights_;
};

}  // namespace

FoundByColumns search_columns(const Columns& layer, const AdaptiveRules& rules, const uint8_t* mask, const double* hidden, uint64_t seed, uint64_t key, int threads,
                              float* estimates) {
    return Search(layer, rules, mask, hidden, seed, key, threads).answer(estimates);
}

}  // namespace headlong
