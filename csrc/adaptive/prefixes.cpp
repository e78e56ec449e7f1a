#include "adaptive/prefixes.h"

#include <algorithm>
#include <cmath>

#include "runtime/pool.h"
#include "runtime/shared_work.h"

namespace headlong {

Prefixes::Prefixes(const ColumnReader& reader, const double* x, uint64_t seed, uint64_t key, double warm, int threads)
    : reader_(reader), threads_(threads), ends_(reader.padded / kGroup) {
    order(x, seed, key);
    most_ = std::min(size(), std::max<int64_t>(1, static_cast<int64_t>(warm * static_cast<double>(size()))));
    list_prefixes();
}

void Prefixes::order(const double* x, uint64_t seed, uint64_t key) {
    const int64_t dim = reader_.rotated_dim, padded = (dim + 3) / 4 * 4;
    std::vector<uint32_t> high(padded), low(padded);
    reader_.kernels->noise(seed, key, 0, 0, padded, high.data());
    reader_.kernels->noise(seed, key, 0x80000000u, 0, padded, low.data());
    double total = 0;
    for (int64_t j = 0; j < dim; ++j) total += reader_.column_weight[j] * std::fabs(x[j]);
    struct Item {
        double key, share;
        int32_t id;
    };
    std::vector<Item> items;
    items.reserve(dim);
    const double log_total = std::log(total);
    for (int64_t j = 0; j < dim; ++j) {
        const double heavy = reader_.column_weight[j] * std::fabs(x[j]);
        if (!(heavy > 0)) continue;
        const uint64_t word = static_cast<uint64_t>(high[j]) << 32 | low[j];
        const double e = word >> 63 ? -std::log1p(-((static_cast<double>(~word) + 0.5) * 0x1p-64))
                                    : -std::log((static_cast<double>(word) + 0.5) * 0x1p-64);
        const double share = std::log(heavy) - log_total;
        items.push_back({share - std::log(e), share, static_cast<int32_t>(j)});
    }
    std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.key > b.key; });
    for (const Item& item : items) {
        ids_.push_back(item.id);
        x_.push_back(x[item.id]);
        shares_.push_back(item.share);
        keys_.push_back(item.key);
    }
}

// Every length that a prefix can have: those of a race, and those that go on from the warm-up's last.
void Prefixes::list_prefixes() {
    std::vector<int64_t> lengths;
    for (const int64_t from : {int64_t{0}, most_}) {
        if (from > 0) lengths.push_back(from);
        for (int64_t m = from; m < size();) lengths.push_back(m = following(m, size()));
    }
    std::sort(lengths.begin(), lengths.end());
    lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
    int64_t total = 0;
    for (const int64_t m : lengths) total += 2 * m;
    weights_.resize(total);
    prefix_count_ = lengths.size();
    prefixes_ = std::make_unique<Weights[]>(prefix_count_);
    float* free = weights_.data();
    for (size_t i = 0; i < prefix_count_; ++i) {
        prefixes_[i].m = lengths[i];
        prefixes_[i].c = free;
        prefixes_[i].d = free + lengths[i];
        free += 2 * lengths[i];
    }
}

const Prefixes::Weights& Prefixes::weights(int64_t m) {
    Weights* found = std::lower_bound(prefixes_.get(), prefixes_.get() + prefix_count_, m,
                                      [](const Weights& w, int64_t length) { return w.m < length; });
    std::call_once(found->once, [&] {
        for (int64_t j = 0; j < m; ++j) {
            // beyond 4 the chance is 1 to the last digit
            const double over = m < size() ? shares_[j] - keys_[m] : 4;
            const double q = over < 4 ? -std::expm1(-std::exp(over)) : 1.0;
            const double scaled = x_[j] / q;
            found->c[j] = static_cast<float>(scaled);
            found->d[j] = static_cast<float>(scaled * scaled * (1 - q));
        }
    });
    return *found;
}

void Prefixes::moments(Tile& tile, int64_t group, uint64_t arms, int64_t m, float* est, float* var) {
    std::fill_n(est, kGroup, 0.f);
    std::fill_n(var, kGroup, 0.f);
    if (m == 0) return;
    const Weights& weight = weights(m);
    if (tile.group != group) {
        tile.group = group;
        std::fill(std::begin(tile.read), std::end(tile.read), 0);
    }
    unsigned blocks = 0;
    for (int b = 0; b < kGroup / kLanes; ++b) {
        if ((arms >> b * kLanes & 0xFFFF) == 0) continue;
        blocks |= 1u << b;
        tile.bytes += std::max<int64_t>(0, m - tile.read[b]) * kLanes * item_bytes(reader_.column_kind);
        tile.read[b] = std::max(tile.read[b], m);
    }
    reader_.column->moments(at(group), reader_.column_kind, ids_.data(), weight.c, weight.d, m, blocks, est, var);
    fetch_ahead(tile, __builtin_popcount(blocks) * m);
}

// The next group will read about as far as this one: its columns are fetched while this one is summed.
void Prefixes::fetch_ahead(Tile& tile, int64_t work) const {
    if (tile.next < 0) return;
    const int64_t far = *std::max_element(std::begin(tile.read), std::end(tile.read));
    const int64_t size = item_bytes(reader_.column_kind);
    const char* from = at(tile.next);
    for (const int64_t stop = std::min(far, tile.ahead + work / 4); tile.ahead < stop; ++tile.ahead)
        for (int64_t line = 0; line < kGroup * size; line += 64)
            __builtin_prefetch(from + ids_[tile.ahead] * kGroup * size + line, 0, 2);
}

void Prefixes::take(State& state, int64_t group, uint64_t arms, int64_t m, const float* est, const float* var) const {
    const int64_t first = group * kGroup;
    if (arms == ~uint64_t{0}) {
        for (int64_t i = 0; i < kGroup; ++i) state.est[first + i] = static_cast<float>(base(first + i) + est[i]);
        std::copy_n(var, kGroup, state.var + first);
        std::fill_n(state.pulls + first, kGroup, static_cast<int32_t>(m));
        return;
    }
    each_arm(arms, [&](int64_t i) {
        state.est[first + i] = static_cast<float>(base(first + i) + est[i]);
        state.var[first + i] = var[i];
        state.pulls[first + i] = static_cast<int32_t>(m);
    });
}

// Classes of one length go on together, the shortest first.
void Prefixes::each(Tile& tile, State& state, int64_t group, uint64_t arms, const float* limits) {
    const int64_t first = group * kGroup;
    struct {
        int64_t m;
        uint64_t arms;
    } runs[kGroup];
    int count = 0;
    const auto add = [&](int64_t m, uint64_t some) {
        int r = 0;
        while (r < count && runs[r].m != m) ++r;
        if (r == count) runs[count++] = {m, 0};
        runs[r].arms |= some;
    };
    each_arm(arms & reader_.column->above(state.var + first, limits), [&](int64_t i) {
        if (state.pulls[first + i] < size()) add(state.pulls[first + i], uint64_t{1} << i);
    });
    while (count > 0) {
        int least = 0;
        for (int r = 1; r < count; ++r)
            if (runs[r].m < runs[least].m) least = r;
        const auto run = runs[least];
        runs[least] = runs[--count];
        float est[kGroup], var[kGroup];
        const int64_t m = following(run.m, size());
        moments(tile, group, run.arms, m, est, var);
        take(state, group, run.arms, m, est, var);
        const uint64_t further = m < size() ? run.arms & reader_.column->above(var, limits) : 0;
        if (further != 0) add(m, further);
    }
}

void Prefixes::over_groups(const Arms& arms, const std::function<void(Tile&, int64_t)>& work) {
    constexpr int64_t kRun = 8;  // groups that a thread takes at once
    int64_t busy = 0;
    for (const uint64_t mask : arms) busy += mask != 0;
    const int threads = static_cast<int>(std::min<int64_t>(threads_, std::max<int64_t>(1, busy / kRun)));
    Turns<int64_t> next;
    run_parallel(threads, [&](int) {
        Tile tile;
        for (int64_t at; (at = next.fetch_add(kRun)) < groups();)
            for (int64_t group = at, stop = std::min(groups(), at + kRun); group < stop; ++group) {
                if (arms[group] == 0) continue;
                tile.next = group + 1 < stop && arms[group + 1] != 0 ? group + 1 : -1;
                tile.ahead = 0;
                work(tile, group);
            }
        bytes_.fetch_add(tile.bytes, std::memory_order_relaxed);
    });
}

Ends Prefixes::ends_of(const State& state, const Arms& arms) const {
    Ends all;
    for (int64_t group = 0; group < groups(); ++group)
        if (arms[group] != 0) all.join(ends_[group]);
    const auto place = [&](int64_t group, const float* values, float value) {
        if (group < 0) return group;
        int64_t found = group * kGroup + __builtin_ctzll(arms[group]);
        for (uint64_t left = arms[group]; left != 0; left &= left - 1) {
            found = group * kGroup + __builtin_ctzll(left);
            if (values[found] == value) break;
        }
        return found;
    };
    all.widest = place(all.widest, state.var, all.variance);
    all.best = place(all.best, state.est, all.estimate);
    return all;
}

void Prefixes::pull(State& state, const Arms& arms, int64_t m) {
    over_groups(arms, [&](Tile& tile, int64_t group) {
        float est[kGroup], var[kGroup];
        moments(tile, group, arms[group], m, est, var);
        take(state, group, arms[group], m, est, var);
        std::copy_n(state.est + group * kGroup, kGroup, est);
        each_arm(~arms[group], [&](int64_t i) { est[i] = var[i] = -std::numeric_limits<float>::infinity(); });
        ends_[group] = {reader_.column->largest(var, kGroup), reader_.column->largest(est, kGroup), group, group};
    });
    state.ends = ends_of(state, arms);
}

int64_t Prefixes::together(State& state, const Arms& arms, int64_t m, double target, double multiplier, int64_t most) {
    Tile tile;
    while (m < most && multiplier * state.ends.variance > target) {
        m = following(m, most);
        if (m < most && state.ends.widest >= 0) {  // one class that is still too wide sends all of them on
            const int64_t group = state.ends.widest / kGroup, i = state.ends.widest % kGroup;
            float est[kGroup], var[kGroup];
            moments(tile, group, uint64_t{1} << i, m, est, var);
            if (multiplier * var[i] > target) continue;
        }
        pull(state, arms, m);
    }
    bytes_.fetch_add(tile.bytes, std::memory_order_relaxed);
    return m;
}

}  // namespace headlong
