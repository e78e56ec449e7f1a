// The classes with the largest keys link(z) / T + gumbel of one query.
#include <algorithm>

#include "executor/verbs.h"
#include "runtime/shared_work.h"
#include "sampling/philox.h"

namespace headlong {
namespace {

constexpr int64_t kMoreKeys = 8;      // scored beside those that are wanted, for a better threshold
constexpr size_t kManyScored = 1024;  // classes that earlier draws scored: from here on their noise is made with that of all

bool by_key(const Keyed& a, const Keyed& b) { return a.key > b.key || (a.key == b.key && a.id < b.id); }

// The upper ends of all keys.
void upper_keys(const Executor& e, const Estimates& all, const SampleRule& rule, int threads, Keys& keys) {
    const uint64_t row = rule.row0 + all.row;
    const float beta = static_cast<float>(1 / rule.temperature);
    const int64_t lead = rule.class0 & 3;  // noise() starts at a multiple of four
    const int64_t chunks = (e.padded + kChunk - 1) / kChunk;
    keys.upper.resize(e.padded);
    keys.largest.resize(chunks);
    keys.words.resize(all.scored.size() < kManyScored ? 0 : e.padded);
    over_chunks(chunks, threads, [&](int, int64_t c) {
        uint32_t words[kChunk + kBlock];
        const int64_t first = c * kChunk, n = std::min<int64_t>(kChunk, e.padded - first);
        e.kernels->noise(rule.seed, row, keys.draw, first + rule.class0 - lead, n + (lead ? kBlock : 0), words);
        if (!keys.words.empty()) std::copy_n(words + lead, n, &keys.words[first]);
        keys.largest[c] = e.kernels->gumbel_keys(&all.est[first], &all.rad[first], words + lead, n, e.link, beta, &keys.upper[first]);
    });
}

// What `count` values reach at least, by the largest of each chunk, as long as none of them has fallen.
float reached_by(std::vector<float> each, int64_t count) {
    const float none = -std::numeric_limits<float>::max();
    if (count > static_cast<int64_t>(each.size())) return none;
    std::nth_element(each.begin(), each.begin() + (count - 1), each.end(), std::greater<float>());
    return std::max(each[count - 1], none);
}

// The classes with values that reach `floor`, `most` of them, the largest, where there are more; `largest` of each chunk.
std::vector<Hit> largest_of(const Kernels& kernels, const Scratch<float>& values, const std::vector<float>& largest, size_t most, float floor, int threads) {
    const int64_t padded = static_cast<int64_t>(values.size());
    std::vector<std::vector<Hit>> each(threads);
    over_chunks((padded + kChunk - 1) / kChunk, threads, [&](int t, int64_t c) {
        const float none[kChunk] = {};
        int32_t ids[kChunk];
        float kept[kChunk], upper[kChunk];
        std::vector<Hit>& own = each[t];
        const float least = own.size() == most ? own.front().upper : floor;
        if (largest[c] < least) return;
        const int64_t first = c * kChunk, n = std::min<int64_t>(kChunk, padded - first);
        const int64_t came = kernels.candidates(&values[first], none, n, least, static_cast<int32_t>(first), ids, kept, upper);
        for (int64_t i = 0; i < came; ++i) {
            own.push_back({ids[i], kept[i], kept[i]});
            if (own.size() > most) {  // a heap, the worst in front
                std::push_heap(own.begin(), own.end(), by_upper);
                std::pop_heap(own.begin(), own.end(), by_upper);
                own.pop_back();
            } else if (own.size() == most) {
                std::make_heap(own.begin(), own.end(), by_upper);
            }
        }
    });
    std::vector<Hit> all = joined(each);
    if (all.size() > most) {
        std::nth_element(all.begin(), all.begin() + static_cast<int64_t>(most), all.end(), by_upper);
        all.resize(most);
    }
    return all;
}

// Takes a scored class among the m largest keys, a heap with the worst in front. Draws share what was scored, and most of it cannot
// win: the first 32 bits of its noise say so.
void keep_key(const Executor& e, const SampleRule& rule, uint64_t row, const Keys& keys, const Scored& s, int64_t m, std::vector<Keyed>& best) {
    const double f = e.linked(s.z) / rule.temperature;
    const bool full = static_cast<int64_t>(best.size()) == m;
    if (full) {
        const uint32_t word = keys.words.empty() ? philox_word(rule.seed, row, keys.draw, s.id + rule.class0) : keys.words[s.id];
        if (!may_reach(f, word, best.front().key)) return;
    }
    const Keyed one{s.id, s.z, f + gumbel(rule.seed, row, keys.draw, s.id + rule.class0)};
    if (full) {
        if (!by_key(one, best.front())) return;
        std::pop_heap(best.begin(), best.end(), by_key);
        best.pop_back();
    }
    best.push_back(one);
    std::push_heap(best.begin(), best.end(), by_key);
}

}  // namespace

double gumbel(uint64_t seed, uint64_t row, uint32_t draw, int64_t id) {
    const uint64_t word = static_cast<uint64_t>(philox_word(seed, row, draw, id)) << 32 | philox_word(seed, row, draw | 0x80000000u, id);
    const double e = word >> 63 ? -std::log1p(-((static_cast<double>(~word) + 0.5) * 0x1p-64))
                                : -std::log((static_cast<double>(word) + 0.5) * 0x1p-64);
    return -std::log(e);
}

// The k best classes: the best estimates are scored exactly, and what can still reach their worst. False: so many that all is better read.
bool find_best(const Executor& e, Estimates& all, int64_t k, int threads, std::vector<Scored>& best, Answer& answer) {
    if (all.given) {  // scored as published
        best.assign(all.scored.begin(), all.scored.begin() + std::min<size_t>(k, all.scored.size()));
        return true;
    }
    const TrueOrder order(*e.kernels, e, all.hidden);
    const BestOfHits of{order, k, best, [&](std::vector<Scored>& rows) { score_known(e, all, rows, threads, answer); }};
    const int64_t chunks = (e.padded + kChunk - 1) / kChunk;
    std::vector<float> largest(chunks);
    for (int64_t c = 0; c < chunks; ++c) {
        bool finite = true;
        largest[c] = e.kernels->largest(&all.est[c * kChunk], nullptr, std::min<int64_t>(kChunk, e.padded - c * kChunk), &finite);
    }
    std::vector<Hit> open = largest_of(*e.kernels, all.est, largest, k, reached_by(largest, k), threads);
    of.first(open);
    const auto reach = [&] {
        const float least = -std::numeric_limits<float>::max();  // classes that are not there are below it
        if (static_cast<int64_t>(best.size()) < k) return least;
        return std::max(least, std::nextafterf(static_cast<float>(best.back().z), -std::numeric_limits<float>::infinity()));
    };
    std::vector<std::vector<Hit>> each(threads);
    const float from = reach();
    over_chunks(chunks, threads, [&](int t, int64_t c) {
        int32_t ids[kChunk];
        float kept[kChunk], upper[kChunk];
        const int64_t first = c * kChunk, n = std::min<int64_t>(kChunk, e.padded - first);
        const int64_t came = e.kernels->candidates(&all.est[first], &all.rad[first], n, from, static_cast<int32_t>(first), ids, kept, upper);
        for (int64_t i = 0; i < came; ++i) each[t].push_back({ids[i], kept[i], upper[i]});
    });
    open = joined(each);
    return of.rest(open, 0, std::max(static_cast<int64_t>(kMostScored * static_cast<double>(e.vocab)), 2 * k + 256), at_once(k), reach);
}

// The m classes with the largest keys, best first. False: there are so many candidates that all is better read.
bool best_keys(const Executor& e, Estimates& all, const SampleRule& rule, int64_t m, int threads, Keys& keys, std::vector<Keyed>& best, Answer& answer) {
    float floor = -std::numeric_limits<float>::max();
    if (keys.upper.empty()) {
        upper_keys(e, all, rule, threads, keys);
        floor = reached_by(keys.largest, m + kMoreKeys);
    }
    size_t taken = 0;
    best.clear();
    const auto take = [&] {  // what has been scored by now
        const uint64_t row = rule.row0 + all.row;
        for (; taken < all.scored.size(); ++taken) {
            const Scored& s = all.scored[taken];
            keys.upper[s.id] = -std::numeric_limits<float>::infinity();
            keep_key(e, rule, row, keys, s, m, best);
        }
        return static_cast<int64_t>(best.size()) < m ? -kInf : best.front().key;
    };
    const auto score_some = [&](std::vector<Hit>::const_iterator from, std::vector<Hit>::const_iterator to) {
        std::vector<Scored> rows;
        for (; from != to; ++from) rows.push_back({from->id, 0});
        score_known(e, all, rows, threads, answer);
        return take();
    };
    take();
    std::vector<Hit> open = largest_of(*e.kernels, keys.upper, keys.largest, m + kMoreKeys, floor, threads);
    double worst = score_some(open.begin(), open.end());
    const float reach = std::max(static_cast<float>(worst), -std::numeric_limits<float>::max());
    open = largest_of(*e.kernels, keys.upper, keys.largest, e.padded, reach, threads);
    if (static_cast<double>(open.size()) > kMostScored * static_cast<double>(e.vocab) + 1024.0 + 8.0 * static_cast<double>(m)) return false;
    std::sort(open.begin(), open.end(), by_upper);
    score_from_the_top(
        0, open.size(), [&] { return std::max<int64_t>(4, m - static_cast<int64_t>(best.size())); },
        [&](size_t i) { return open[i].upper; }, [&] { return worst; },
        [&](size_t from, size_t to) { worst = score_some(open.cbegin() + from, open.cbegin() + to); });
    std::sort_heap(best.begin(), best.end(), by_key);
    return true;
}

}  // namespace headlong
