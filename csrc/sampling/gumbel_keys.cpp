// The class with the largest key link(z) / T + gumbel of one query.
#include <algorithm>

#include "executor/verbs.h"
#include "runtime/shared_work.h"
#include "sampling/philox.h"

namespace headlong {
namespace {

constexpr int64_t kFirstKeys = 9;     // scored before the others, for a threshold
constexpr size_t kManyScored = 1024;  // classes that earlier draws scored: from here on their noise is made with that of all

bool by_key(const Keyed& a, const Keyed& b) { return a.key > b.key || (a.key == b.key && a.id < b.id); }

// The upper ends of all keys.
void upper_keys(const Executor& e, const Estimates& all, const SampleRule& rule, int threads, Keys& keys) {
    const uint64_t row = rule.row0;
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

// Takes a scored class, if its key is larger. Draws share what was scored, and most of it cannot win: the first 32 bits of its noise say so.
void keep_key(const Executor& e, const SampleRule& rule, uint64_t row, const Keys& keys, const Scored& s, Keyed& best) {
    const double f = e.linked(s.z) / rule.temperature;
    if (best.id >= 0) {
        const uint32_t word = keys.words.empty() ? philox_word(rule.seed, row, keys.draw, s.id + rule.class0) : keys.words[s.id];
        if (!may_reach(f, word, best.key)) return;
    }
    const Keyed one{s.id, s.z, f + gumbel(rule.seed, row, keys.draw, s.id + rule.class0)};
    if (best.id < 0 || by_key(one, best)) best = one;
}

}  // namespace

double gumbel(uint64_t seed, uint64_t row, uint32_t draw, int64_t id) {
    const uint64_t word = static_cast<uint64_t>(philox_word(seed, row, draw, id)) << 32 | philox_word(seed, row, draw | 0x80000000u, id);
    const double e = word >> 63 ? -std::log1p(-((static_cast<double>(~word) + 0.5) * 0x1p-64))
                                : -std::log((static_cast<double>(word) + 0.5) * 0x1p-64);
    return -std::log(e);
}

// The class with the largest key. False: there are so many candidates that all is better read.
bool best_key(const Executor& e, Estimates& all, const SampleRule& rule, int threads, Keys& keys, Keyed& best, Answer& answer) {
    upper_keys(e, all, rule, threads, keys);
    const float floor = reached_by(keys.largest, kFirstKeys);
    size_t taken = 0;
    best = {-1, -kInf, -kInf};
    const auto take = [&] {  // what has been scored by now
        const uint64_t row = rule.row0;
        for (; taken < all.scored.size(); ++taken) {
            keys.upper[all.scored[taken].id] = -std::numeric_limits<float>::infinity();
            keep_key(e, rule, row, keys, all.scored[taken], best);
        }
    };
    const auto score_some = [&](std::vector<Hit>::const_iterator from, std::vector<Hit>::const_iterator to) {
        std::vector<Scored> rows;
        for (; from != to; ++from) rows.push_back({from->id, 0});
        score_known(e, all, rows, threads, answer);
        take();
    };
    take();
    std::vector<Hit> open = largest_of(*e.kernels, keys.upper, keys.largest, kFirstKeys, floor, threads);
    score_some(open.begin(), open.end());
    const float reach = std::max(static_cast<float>(best.key), -std::numeric_limits<float>::max());
    open = largest_of(*e.kernels, keys.upper, keys.largest, e.padded, reach, threads);
    if (static_cast<double>(open.size()) > kMostScored * static_cast<double>(e.vocab) + 1024.0) return false;
    std::sort(open.begin(), open.end(), by_upper);
    score_from_the_top(
        0, open.size(), [] { return int64_t{4}; }, [&](size_t i) { return open[i].upper; }, [&] { return best.key; },
        [&](size_t from, size_t to) { score_some(open.cbegin() + from, open.cbegin() + to); });
    return true;
}

}  // namespace headlong
