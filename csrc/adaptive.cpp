// AdaptiveSoftmax as published, step for step that of engines/bandit_published.py.
#include "adaptive.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "pool.h"

namespace headlong {

void over_strips(int64_t padded, int threads, const std::function<void(int64_t, int64_t)>& work) {
    const int64_t strips = (padded + 511) / 512;
    const int parts = static_cast<int>(std::min<int64_t>(threads, std::max<int64_t>(1, strips / 4)));
    run_parallel(parts, [&](int t) {
        const int64_t first = strips * t / parts * 512, last = std::min(padded, strips * (t + 1) / parts * 512);
        if (first < last) work(first, last - first);
    });
}

double ColumnReader::logit(const double* hidden, int64_t id) const {
    double z;
    kernels->dot_rows(weight, kind, dim, &id, 1, hidden, &z);
    return bias == nullptr ? z : z + bias[id];
}

namespace {

constexpr double kGrowth = 1.5;
constexpr int64_t kFirst = 16;

int64_t following(int64_t m, int64_t most) {
    return std::min(most, std::max(kFirst, static_cast<int64_t>(std::ceil(kGrowth * static_cast<double>(m)))));
}

// One query: of every class the length of its prefix, its estimate and its variance.
struct Search {
    const ColumnReader& reader;
    int threads;
    std::vector<int32_t> ids;            // coordinates by descending key
    std::vector<double> x, shares, keys; // of those
    std::vector<float> c, d, est, var;
    std::vector<int32_t> pulls;
    std::vector<double> base;
    double bytes = 0;

    int64_t size() const { return static_cast<int64_t>(ids.size()); }

    void order(const double* values, uint64_t seed, uint64_t key) {
        const int64_t dim = reader.turned, padded = (dim + 3) / 4 * 4;
        std::vector<uint32_t> high(padded), low(padded);
        reader.kernels->noise(seed, key, 0, 0, padded, high.data());
        reader.kernels->noise(seed, key, 0x80000000u, 0, padded, low.data());
        double total = 0;
        for (int64_t j = 0; j < dim; ++j) total += reader.column_weight[j] * std::fabs(values[j]);
        struct Item {
            double key, share;
            int32_t id;
        };
        std::vector<Item> items;
        items.reserve(dim);
        const double log_total = std::log(total);
        for (int64_t j = 0; j < dim; ++j) {
            const double heavy = reader.column_weight[j] * std::fabs(values[j]);
            if (!(heavy > 0)) continue;
            const uint64_t word = static_cast<uint64_t>(high[j]) << 32 | low[j];
            const double e = word >> 63 ? -std::log1p(-((static_cast<double>(~word) + 0.5) * 0x1p-64))
                                        : -std::log((static_cast<double>(word) + 0.5) * 0x1p-64);
            const double share = std::log(heavy) - log_total;
            items.push_back({share - std::log(e), share, static_cast<int32_t>(j)});
        }
        std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.key > b.key; });
        for (const Item& item : items) {
            ids.push_back(item.id);
            x.push_back(values[item.id]);
            shares.push_back(item.share);
            keys.push_back(item.key);
        }
        c.resize(ids.size());
        d.resize(ids.size());
    }

    // What the first m coordinates are multiplied by.
    void weigh(int64_t m) {
        for (int64_t j = 0; j < m; ++j) {
            const double q = m < size() ? -std::expm1(-std::exp(std::min(shares[j] - keys[m], 700.0))) : 1.0;
            const double scaled = x[j] / q;
            c[j] = static_cast<float>(scaled);
            d[j] = static_cast<float>(scaled * scaled * (1 - q));
        }
    }

    void pull(const std::vector<int32_t>& arms, int64_t m) {
        weigh(m);
        const int64_t padded = reader.padded;
        if (static_cast<int64_t>(arms.size()) * 32 >= reader.vocab) {
            std::vector<float> e(padded), v(padded);
            over_strips(padded, threads, [&](int64_t first, int64_t n) {
                reader.column->moments(reader.columns, padded, ids.data(), c.data(), d.data(), m, first, n, &e[first],
                                       &v[first]);
            });
            for (int32_t i : arms) {
                est[i] = static_cast<float>(base[i] + e[i]);
                var[i] = v[i];
                pulls[i] = static_cast<int32_t>(m);
            }
            bytes += static_cast<double>(padded * m) * 4;
            return;
        }
        for (int32_t i : arms) {
            double e = 0, v = 0;
            for (int64_t j = 0; j < m; ++j) {
                const double w = reader.columns[ids[j] * padded + i];
                e += w * c[j];
                v += w * w * d[j];
            }
            est[i] = static_cast<float>(base[i] + e);
            var[i] = static_cast<float>(v);
            pulls[i] = static_cast<int32_t>(m);
        }
        bytes += static_cast<double>(arms.size()) * static_cast<double>(m) * 4;
    }

    void restart() {
        est.assign(base.begin(), base.end());
        var.assign(reader.padded, size() > 0 ? std::numeric_limits<float>::infinity() : 0.f);
        pulls.assign(reader.padded, 0);
    }

    void together(const std::vector<int32_t>& arms, double target, double multiplier, int64_t most) {
        int64_t m = 0;
        for (int32_t i : arms) m = std::max<int64_t>(m, pulls[i]);
        const auto largest = [&] {
            float top = 0;
            for (int32_t i : arms) top = std::max(top, var[i]);
            return static_cast<double>(top);
        };
        while (m < most && multiplier * largest() > target) {
            m = following(m, most);
            pull(arms, m);
        }
    }

    void each(const std::vector<int32_t>& arms, const std::vector<double>& targets, double multiplier) {
        std::vector<int32_t> part;
        while (true) {
            int64_t shortest = size();
            for (size_t a = 0; a < arms.size(); ++a)
                if (multiplier * var[arms[a]] > targets[a]) shortest = std::min<int64_t>(shortest, pulls[arms[a]]);
            if (shortest >= size()) return;
            part.clear();
            for (size_t a = 0; a < arms.size(); ++a)
                if (pulls[arms[a]] == shortest && multiplier * var[arms[a]] > targets[a]) part.push_back(arms[a]);
            pull(part, following(shortest, size()));
        }
    }
};

std::vector<int32_t> best_arms(Search& search, const PublishedRules& rules, std::vector<int32_t> live, double stage) {
    const double spread = std::max(std::log(static_cast<double>(std::max<int64_t>(search.size(), 2))), 1.0);
    const double logs = std::log(6 * static_cast<double>(live.size()) * spread / stage);
    double target = rules.width / 4;
    while (static_cast<int64_t>(live.size()) > rules.k) {
        search.together(live, target, rules.arm, search.size());
        const auto half = [&](int32_t i) { return std::sqrt(2 * rules.arm * search.var[i] * logs); };
        int32_t best = live[0], least = search.pulls[live[0]];
        for (int32_t i : live) {
            if (search.est[i] > search.est[best]) best = i;
            least = std::min(least, search.pulls[i]);
        }
        const double floor = search.est[best] - half(best);
        std::vector<int32_t> keep;
        for (int32_t i : live)
            if (search.est[i] + half(i) >= floor) keep.push_back(i);
        if (static_cast<int64_t>(keep.size()) <= rules.k || least >= search.size()) break;
        live = std::move(keep);
        target /= 2;
    }
    const size_t k = std::min<size_t>(live.size(), rules.k);
    const auto first = [&](int32_t a, int32_t b) {
        return search.est[a] > search.est[b] || (search.est[a] == search.est[b] && a < b);
    };
    std::partial_sort(live.begin(), live.begin() + k, live.end(), first);
    live.resize(k);
    return live;
}

// What the warm-up says of every class: estimates less their confidence, from which the normaliser's targets are made.
std::vector<double> lower_ends(const Search& search, const PublishedRules& rules, const std::vector<int32_t>& live,
                               double logs) {
    std::vector<double> low(live.size());
    for (size_t a = 0; a < live.size(); ++a)
        low[a] = search.est[live[a]] - std::sqrt(2 * logs * rules.sum * search.var[live[a]]);
    return low;
}

void refine(Search& search, const PublishedRules& rules, const std::vector<int32_t>& live, std::vector<double> low,
            double logs, double stage) {
    std::vector<double> targets(live.size());
    double top = -kInf, alpha = 0, gamma = 0;
    for (const double value : low) top = std::max(top, value);
    for (double& value : low) {
        value -= top;
        alpha += std::exp(value);
        gamma += std::exp(value / 2);
    }
    const double second = 16 * std::sqrt(2.0) * logs / rules.eps * gamma * gamma / alpha;
    const double first = 16 * std::log(12 / stage) / (rules.eps * rules.eps);
    for (size_t a = 0; a < live.size(); ++a)
        targets[a] = std::min(gamma / (second * std::exp(low[a] / 2)), alpha / (first * std::exp(low[a])));
    search.each(live, targets, rules.sum);
}

}  // namespace

PublishedAnswer ColumnReader::published(const double* x, const double* hidden, const uint8_t* mask, uint64_t seed,
                                        uint64_t key, const PublishedRules& rules, int threads, float* estimates) const {
    Search search{*this, threads, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}};
    std::vector<double> scaled(x, x + turned);
    for (double& value : scaled) value *= link_a;
    search.order(scaled.data(), seed, key);
    search.base.assign(padded, 0);
    for (int64_t i = 0; i < vocab; ++i) search.base[i] = link_a * base[i] + link_b;
    search.restart();
    std::vector<int32_t> live;
    for (int64_t i = 0; i < vocab; ++i)
        if (mask == nullptr || mask[i] != 0) live.push_back(static_cast<int32_t>(i));

    PublishedAnswer answer;
    answer.full = static_cast<int64_t>(live.size()) * search.size();
    const double stage = rules.delta / (rules.exact ? 2 : 3), eps = rules.exact ? rules.eps : rules.eps / 4;
    const double logs = std::log(6 * static_cast<double>(live.size()) / stage);
    const int64_t most = std::min(search.size(), std::max<int64_t>(1, static_cast<int64_t>(rules.warm * search.size())));
    // The race and the normaliser share what is read, not what they take from it: each has a multiplier of its own.
    std::vector<int32_t> best = best_arms(search, rules, live, stage);
    const std::vector<float> est = search.est, var = search.var;
    const std::vector<int32_t> pulls = search.pulls;
    search.restart();
    search.together(live, 1 / (17 * logs), rules.sum, most);
    std::vector<double> low = lower_ends(search, rules, live, logs);
    for (int32_t i : live)
        if (pulls[i] > search.pulls[i]) search.est[i] = est[i], search.var[i] = var[i], search.pulls[i] = pulls[i];
    std::vector<double> values;
    if (rules.exact) {
        for (int32_t i : best) {
            values.push_back(link_a * logit(hidden, i) + link_b);
            search.est[i] = static_cast<float>(values.back());
            search.var[i] = 0;
            search.pulls[i] = static_cast<int32_t>(search.size());
            ++answer.rows;
        }
    } else {
        search.together(best, eps * eps / (32 * std::log(2 / stage)), rules.sum, search.size());
    }
    refine(search, rules, live, std::move(low), logs, stage);
    for (size_t a = 0; a < best.size(); ++a)
        answer.best.push_back({best[a], rules.exact ? values[a] : static_cast<double>(search.est[best[a]])});
    std::sort(answer.best.begin(), answer.best.end(), better);
    float peak = -std::numeric_limits<float>::infinity();
    for (int32_t i : live) peak = std::max(peak, search.est[i]);
    std::vector<float> rad(padded, 0.f);
    for (int64_t i = 0; i < padded; ++i)
        if (i >= vocab || (mask != nullptr && mask[i] == 0)) search.est[i] = -std::numeric_limits<float>::infinity();
    Kernels::Sums sums{0, 0, 0, 0};
    kernels->interval_sums(search.est.data(), rad.data(), padded, 0.f, Link{0, 1.f, 0.f}, 1.f, peak, &sums);
    answer.lse = peak + std::log(sums.centre);
    for (int32_t i : live) answer.pulls += search.pulls[i];
    answer.bytes = search.bytes + static_cast<double>(answer.rows * dim * (kind == Kind::f32 ? 4 : 2));
    if (estimates != nullptr) std::copy_n(search.est.data(), vocab, estimates);
    return answer;
}

}  // namespace headlong
