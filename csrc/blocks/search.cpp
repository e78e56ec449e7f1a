// Queries' way through the blocks: all nodes of the coarsest level, the classes below the best of them for a threshold, then every
// node whose bound reaches it, the highest first; what stays open is looked at closer, then scored, best first. Queries that go
// together read a record one after the other while it is in the cache; a long way is gone by several threads.
#include "blocks/search.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "blocks/one_query.h"
#include "runtime/pool.h"
#include "sampling/largest_key.h"

namespace headlong {
namespace {

constexpr int kTogether = 16;        // queries that go together
constexpr int64_t kCached = 8 << 20; // bytes of records that caches keep between queries, which then go their own ways, the highest bound first
constexpr int64_t kAhead = 6;        // records asked for before they are read
constexpr int64_t kLong = 4096;      // blocks to open from which a second thread is worth its waking
constexpr int64_t kTaken = 4;        // nodes that a thread takes at once

// The way of some queries together.
class Sweep {
  public:
    Sweep(const Blocks& blocks, OneQuery* const* runs, int count) : b_(blocks), runs_(runs), count_(count) {}

    // The nodes of the coarsest level that any query wants, roughly from the highest bound down: a sort by bins.
    void order(std::vector<int32_t>& nodes) const {
        if (count_ == 1) return sorted(runs_[0]->place(), runs_[0]->bins(), nodes);
        static thread_local std::vector<int16_t> first;  // of all queries' bins of a node
        static thread_local std::vector<int32_t> listed;
        static thread_local std::vector<uint8_t> bins;
        first.assign(b_.levels[0].groups * kNeighbours, kBins);
        listed.clear();
        for (int q = 0; q < count_; ++q) {
            const std::vector<int32_t>& own = runs_[q]->place();
            for (size_t i = 0; i < own.size(); ++i) {
                int16_t& bin = first[own[i]];
                if (bin == kBins) listed.push_back(own[i]);
                bin = std::min<int16_t>(bin, runs_[q]->bins()[i]);
            }
        }
        std::sort(listed.begin(), listed.end());
        bins.resize(listed.size());
        for (size_t i = 0; i < listed.size(); ++i) bins[i] = static_cast<uint8_t>(first[listed[i]]);
        sorted(listed, bins, nodes);
    }

    // Opens what the queries want below the nodes [start, stop) of the list.
    void open(const std::vector<int32_t>& nodes, int64_t start, int64_t stop) {
        if (count_ == 1 && b_.levels.size() == 2) return runs_[0]->leaves(nodes, start, stop);
        const BlockLevel& below = b_.levels[1];
        const int64_t bytes = below.shape.group_bytes(), count = static_cast<int64_t>(nodes.size());
        for (int64_t i = start; i < stop; ++i) {
            if (i + kAhead < count) prefetch(below.records + nodes[i + kAhead] * bytes, bytes);
            uint32_t wanting = 0;
            for (int q = 0; q < count_; ++q) wanting |= static_cast<uint32_t>(runs_[q]->wants(nodes[i])) << q;
            if (wanting != 0) descend(1, nodes[i], wanting);
        }
    }

  private:
    static void sorted(const std::vector<int32_t>& listed, const std::vector<uint8_t>& bins, std::vector<int32_t>& nodes) {
        int32_t starts[kBins + 1] = {0};
        for (uint8_t bin : bins) ++starts[bin + 1];
        for (int b = 0; b < kBins; ++b) starts[b + 1] += starts[b];
        nodes.resize(listed.size());
        for (size_t i = 0; i < listed.size(); ++i) nodes[starts[bins[i]]++] = listed[i];
    }

    // The record `node` of a level, for the queries that want it.
    void descend(size_t level, int32_t node, uint32_t wanting) {
        const BlockLevel& here = b_.levels[level];
        const int64_t bytes = here.shape.group_bytes();
        if (level + 1 == b_.levels.size()) {
            for (uint32_t left = wanting; left != 0; left &= left - 1)
                if (runs_[__builtin_ctz(left)]->is_seeded(node)) wanting &= ~(left & -left);
            const double share = static_cast<double>(bytes) / std::max(1, __builtin_popcount(wanting));
            for (; wanting != 0; wanting &= wanting - 1) runs_[__builtin_ctz(wanting)]->leaf(node, share);
            return;
        }
        const double share = static_cast<double>(bytes) / __builtin_popcount(wanting);
        uint32_t wanted[kNeighbours] = {0}, any = 0;  // who wants each child
        for (; wanting != 0; wanting &= wanting - 1) {
            const int q = __builtin_ctz(wanting);
            uint32_t open = runs_[q]->open(here.records + node * bytes, here.shape, share);
            any |= open;
            for (; open != 0; open &= open - 1) wanted[__builtin_ctz(open)] |= uint32_t{1} << q;
        }
        const BlockLevel& below = b_.levels[level + 1];
        const int64_t more = below.shape.group_bytes();
        for (uint32_t left = any; left != 0; left &= left - 1)
            prefetch(below.records + (node * static_cast<int64_t>(kNeighbours) + __builtin_ctz(left)) * more, more);
        for (; any != 0; any &= any - 1) {
            const int c = __builtin_ctz(any);
            descend(level + 1, node * kNeighbours + c, wanted[c]);
        }
    }

    const Blocks& b_;
    OneQuery* const* runs_;
    int count_;
};

// Some queries of a call, and how many threads may help them.
class Group {
  public:
    Group(const Blocks& blocks, const double* hidden, int64_t k, LargestKey* keys, int threads)
        : b_(blocks), hidden_(hidden), k_(k), keys_(keys), threads_(threads) {}

    // `masks[q]` [vocab] or null, of `count` queries.
    void go(const uint8_t* const* masks, SearchResult* answers, int count) {
        static thread_local std::vector<std::unique_ptr<Work>> kept;
        while (static_cast<int>(kept.size()) < count) kept.push_back(std::make_unique<Work>());
        static thread_local std::vector<OneQuery> all;
        static thread_local std::vector<OneQuery*> runs;
        all.clear();
        all.reserve(count);
        for (int q = 0; q < count; ++q) {
            all.emplace_back(b_, hidden_ + q * b_.dim, k_, keys_ == nullptr ? nullptr : keys_ + q, masks[q], *kept[q], answers[q]);
            answers[q].done = all[q].begin(count);
        }
        for (const Blocks* tree = &b_; tree != nullptr; tree = tree->next) {
            runs.clear();
            for (int q = 0; q < count; ++q) {
                if (tree != &b_) answers[q].done = answers[q].done && all[q].enter(*tree, count);
                if (answers[q].done) runs.push_back(&all[q]);
            }
            walk(*tree, runs, masks[0], answers[0]);
            for (int q = 0; q < count; ++q) answers[q].done = answers[q].done && all[q].close();
        }
        for (int q = 0; q < count; ++q) {
            const std::vector<Scored>& best = all[q].best();
            answers[q].best.assign(best.begin(), best.begin() + std::min(k_, static_cast<int64_t>(best.size())));
            answers[q].done = answers[q].done && all[q].told_apart();
            answers[q].opened = std::min(1.0, static_cast<double>(all[q].opened()) / static_cast<double>(b_.levels.back().groups));
        }
    }

  private:
    // One tree, for all queries that are left. What several threads find of one query joins its candidates' best.
    void walk(const Blocks& tree, const std::vector<OneQuery*>& runs, const uint8_t* mask, SearchResult& first) {
        static thread_local std::vector<int32_t> nodes;
        const int queries = static_cast<int>(runs.size());
        if (queries == 0) return;
        Sweep sweep(tree, runs.data(), queries);
        if (tree.levels.size() == 1) {
            const auto bytes = static_cast<double>(tree.levels[0].shape.group_bytes());
            for (int64_t g = 0; g < tree.levels[0].groups; ++g)
                for (OneQuery* run : runs) run->leaf(static_cast<int32_t>(g), bytes / queries);
            return;
        }
        sweep.order(nodes);
        if (queries == 1 && threads_ > 1 && below(tree, nodes) >= kLong) split(tree, *runs[0], mask, nodes, first);
        else sweep.open(nodes, 0, static_cast<int64_t>(nodes.size()));
    }

    // Blocks below the nodes of the coarsest level, at most.
    static int64_t below(const Blocks& tree, const std::vector<int32_t>& nodes) {
        auto count = static_cast<int64_t>(nodes.size());
        for (size_t level = 2; level < tree.levels.size(); ++level) count *= kNeighbours;
        return count;
    }

    // One query's nodes among several threads, each with candidates and a best of its own and one threshold for all.
    void split(const Blocks& tree, OneQuery& first, const uint8_t* mask, const std::vector<int32_t>& nodes, SearchResult& answer) const {
        struct Part {
            SearchResult answer;
            std::vector<Scored> best;
            std::vector<LargestKey> key;   // of one query, or none
            int64_t opened = 0;
            double dropped = -std::numeric_limits<double>::infinity();
            bool done = true;
        };
        std::vector<Part> parts(threads_);
        std::atomic<float> threshold{kLowest};
        std::atomic<int64_t> next{0};
        const auto count = static_cast<int64_t>(nodes.size());
        const auto open = [&](OneQuery& run) {
            OneQuery* one = &run;
            Sweep sweep(tree, &one, 1);
            for (int64_t at = next.fetch_add(kTaken); at < count; at = next.fetch_add(kTaken))
                sweep.open(nodes, at, std::min(at + kTaken, count));
        };
        first.share(&threshold);
        std::vector<LargestKey> began;
        if (keys_ != nullptr) began.push_back(*keys_);
        const float floor = first.floor();  // as it is now: whoever takes the first part raises it
        run_parallel(threads_, [&](int t) {
            if (t == 0) {
                open(first);
                return;
            }
            static thread_local Work of_part;
            LargestKey* const key = began.empty() ? nullptr : &parts[t].key.emplace_back(began.front());
            OneQuery own(tree, hidden_, k_, key, mask, of_part, parts[t].answer);
            own.join(first, floor, threshold);
            open(own);
            parts[t].done = own.close();
            parts[t].best = own.best();
            parts[t].opened = own.opened();
            parts[t].dropped = own.dropped();
        });
        for (const Part& part : parts) {
            for (const LargestKey& key : part.key) keys_->join(key);
            first.add(part.best, part.opened, part.dropped);
            answer.rows += part.answer.rows;
            answer.bytes += part.answer.bytes;
            answer.done = answer.done && part.done;
        }
        first.share(nullptr);
    }

    const Blocks& b_;
    const double* hidden_;
    int64_t k_;
    LargestKey* keys_;
    int threads_;
};

}  // namespace

bool Trial::goes_on() {
    if (!over()) return true;
    if (++passed_by < wait) return false;
    passed_by = 0;
    return true;
}

// What was long ago counts half. Where searches are no longer made, a few that are not in vain bring them back.
void Trial::count(double bytes, bool done) {
    const bool vain = !done || bytes > most + beyond, was_over = over();
    beyond = beyond * (1 - 1.0 / (2 * kRemembered));
    if (was_over) {
        tried = kTried, in_vain = std::clamp(in_vain + (vain ? 1 : -1), 0, kTried);
        wait = vain ? std::min(2 * wait, kSeldom) : kTried;
        return;
    }
    in_vain += vain, wait = kTried;
    if (++tried >= kRemembered) tried = kRemembered / 2, in_vain = in_vain / 2;
}

void Trial::passed(double more) { beyond = beyond + (std::max(0.0, more) - beyond) / kTried; }

void know_places(const Blocks& b) {
    std::call_once(b.places.once, [&] {
        b.places.of.assign(b.vocab, 0);
        for (int64_t i = 0; i < b.levels.back().groups * kNeighbours; ++i)
            if (b.order[i] >= 0) b.places.of[b.order[i]] = static_cast<int32_t>(i);
    });
}

std::vector<SearchResult> search(const Blocks& blocks, const double* hidden, int64_t count, int64_t k, const uint8_t* mask,
                           bool mask_per_row, int threads, LargestKey* keys) {
    std::vector<SearchResult> answers(count);
    const bool ids = keys == nullptr;
    const bool counted = ids && mask == nullptr && k <= Trial::kShort && blocks.trial.most < kInf;
    if (count == 0 || (counted ? !blocks.trial.goes_on() : ids && blocks.trial.over())) return answers;
    int64_t bytes = 0;
    for (const BlockLevel& level : blocks.levels) bytes += level.groups * level.shape.group_bytes();
    const int64_t each = bytes <= kCached ? 1 : std::min<int64_t>(kTogether, (count + threads - 1) / threads), groups = (count + each - 1) / each;
    std::atomic<int64_t> next{0};
    const auto work = [&](int) {
        const uint8_t* masks[kTogether];
        for (int64_t g = next++; g < groups; g = next++) {
            const int64_t first = g * each, here = std::min(each, count - first);
            for (int64_t q = 0; q < here; ++q)
                masks[q] = mask == nullptr ? nullptr : mask + (mask_per_row ? (first + q) * blocks.vocab : 0);
            Group(blocks, hidden + first * blocks.dim, k, ids ? nullptr : keys + first, groups == 1 ? threads : 1).go(masks, &answers[first], static_cast<int>(here));
        }
    };
    if (groups == 1 || threads == 1) work(0);
    else run_parallel(static_cast<int>(std::min<int64_t>(threads, groups)), work);
    if (counted) {  // the answers' rows are read by whoever answers
        const auto rows = static_cast<double>(k * row_bytes(blocks.kind, blocks.dim));
        for (const SearchResult& answer : answers) blocks.trial.count(answer.bytes - rows, answer.done);
    }
    return answers;
}

}  // namespace headlong
