// A query's way through the blocks: all nodes of the coarsest level, the classes below the best of them for a threshold, then every
// node whose bound reaches it, the highest first; what stays open is looked at closer, then scored, best first. A long way of a draw is
// gone by several threads; of a top-k the threads' own thresholds rise too late for that.
#include "blocks/search.h"

#include <algorithm>
#include <atomic>

#include "blocks/one_query.h"
#include "runtime/pool.h"
#include "sampling/largest_key.h"

namespace headlong {
namespace {

constexpr int64_t kAhead = 6;    // records asked for before they are read
constexpr int64_t kLong = 4096;  // blocks to open from which a second thread is worth its waking
constexpr int64_t kTaken = 4;    // nodes that a thread takes at once

// The nodes of the coarsest level that a query wants, roughly from the highest bound down: a sort by bins.
void in_order(const OneQuery& run, std::vector<int32_t>& nodes) {
    const std::vector<int32_t>& listed = run.place();
    const std::vector<uint8_t>& bins = run.bins();
    int32_t starts[kBins + 1] = {0};
    for (uint8_t bin : bins) ++starts[bin + 1];
    for (int b = 0; b < kBins; ++b) starts[b + 1] += starts[b];
    nodes.resize(listed.size());
    for (size_t i = 0; i < listed.size(); ++i) nodes[starts[bins[i]]++] = listed[i];
}

// What a query wants below the record `node` of a level.
void descend(const Blocks& tree, OneQuery& run, size_t level, int32_t node) {
    const BlockLevel& here = tree.levels[level];
    const int64_t bytes = here.shape.group_bytes();
    if (level + 1 == tree.levels.size()) {
        if (!run.is_seeded(node)) run.leaf(node, static_cast<double>(bytes));
        return;
    }
    const BlockLevel& below = tree.levels[level + 1];
    const int64_t more = below.shape.group_bytes();
    const uint32_t open = run.open(here.records + node * bytes, here.shape, static_cast<double>(bytes));
    for (uint32_t left = open; left != 0; left &= left - 1)
        prefetch(below.records + (node * static_cast<int64_t>(kNeighbours) + __builtin_ctz(left)) * more, more);
    for (uint32_t left = open; left != 0; left &= left - 1) descend(tree, run, level + 1, node * kNeighbours + __builtin_ctz(left));
}

// The same below the nodes [start, stop) of a list.
void open(const Blocks& tree, OneQuery& run, const std::vector<int32_t>& nodes, int64_t start, int64_t stop) {
    if (tree.levels.size() == 2) return run.leaves(nodes, start, stop);
    const BlockLevel& below = tree.levels[1];
    const int64_t bytes = below.shape.group_bytes(), count = static_cast<int64_t>(nodes.size());
    for (int64_t i = start; i < stop; ++i) {
        if (i + kAhead < count) prefetch(below.records + nodes[i + kAhead] * bytes, bytes);
        if (run.wants(nodes[i])) descend(tree, run, 1, nodes[i]);
    }
}

// One query of a call.
struct Asked {
    const double* hidden;
    int64_t k;
    LargestKey* keys;     // or null
    const uint8_t* mask;  // [vocab] or null
    int threads;          // that may help it
    SearchResult& answer;

    // The nodes of a draw among several threads, each with candidates and keys of its own and one threshold for all.
    void split(const Blocks& tree, OneQuery& first, const std::vector<int32_t>& nodes) const {
        struct Part {
            SearchResult answer;
            std::vector<LargestKey> key;  // of one query
            int64_t opened = 0;
            bool done = true;
        };
        std::vector<Part> parts(threads);
        std::atomic<float> threshold{kLowest};
        std::atomic<int64_t> next{0};
        const auto count = static_cast<int64_t>(nodes.size());
        const auto go = [&](OneQuery& run) {
            for (int64_t at = next.fetch_add(kTaken); at < count; at = next.fetch_add(kTaken)) open(tree, run, nodes, at, std::min(at + kTaken, count));
        };
        first.share(&threshold);
        const LargestKey began = *keys;
        const float floor = first.floor();  // as it is now: whoever takes the first part raises it
        run_parallel(threads, [&](int t) {
            if (t == 0) return go(first);
            static thread_local Work of_part;
            Part& part = parts[t];
            OneQuery own(tree, hidden, k, &part.key.emplace_back(began), mask, of_part, part.answer);
            own.join(first, floor, threshold);
            go(own);
            part.done = own.close();
            part.opened = own.opened();
        });
        for (const Part& part : parts) {
            for (const LargestKey& key : part.key) keys->join(key);
            first.add(part.opened);
            answer.rows += part.answer.rows;
            answer.bytes += part.answer.bytes;
            answer.done = answer.done && part.done;
        }
        first.share(nullptr);
    }

    void walk(const Blocks& tree, OneQuery& run) const {
        static thread_local std::vector<int32_t> nodes;
        if (tree.levels.size() == 1) {
            for (int64_t g = 0; g < tree.levels[0].groups; ++g) run.leaf(static_cast<int32_t>(g), static_cast<double>(tree.levels[0].shape.group_bytes()));
            return;
        }
        in_order(run, nodes);
        auto below = static_cast<int64_t>(nodes.size());  // blocks, at most
        for (size_t level = 2; level < tree.levels.size(); ++level) below *= kNeighbours;
        if (keys != nullptr && threads > 1 && below >= kLong) split(tree, run, nodes);
        else open(tree, run, nodes, 0, static_cast<int64_t>(nodes.size()));
    }

    void go(const Blocks& blocks) const {
        static thread_local Work kept;
        OneQuery run(blocks, hidden, k, keys, mask, kept, answer);
        answer.done = run.begin();
        for (const Blocks* tree = &blocks; tree != nullptr && answer.done; tree = tree->next) {
            if (tree != &blocks) answer.done = run.enter(*tree);
            if (answer.done) walk(*tree, run);
            answer.done = answer.done && run.close();
        }
        const std::vector<Scored>& best = run.best();
        answer.best.assign(best.begin(), best.begin() + std::min(k, static_cast<int64_t>(best.size())));
        answer.done = answer.done && run.told_apart();
        answer.opened = std::min(1.0, static_cast<double>(run.opened()) / static_cast<double>(blocks.levels.back().groups));
    }
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
    Trial& trial = blocks.trial(mask != nullptr);
    const bool counted = ids && k <= Trial::kShort && trial.most < kInf;
    if (count == 0 || (counted ? !trial.goes_on() : ids && trial.over())) return answers;
    std::atomic<int64_t> next{0};
    const auto work = [&](int) {
        for (int64_t q = next++; q < count; q = next++) {
            const uint8_t* own = mask == nullptr ? nullptr : mask + (mask_per_row ? q * blocks.vocab : 0);
            Asked{hidden + q * blocks.dim, k, ids ? nullptr : keys + q, own, count == 1 ? threads : 1, answers[q]}.go(blocks);
        }
    };
    if (count == 1 || threads == 1) work(0);
    else run_parallel(static_cast<int>(std::min<int64_t>(threads, count)), work);
    if (counted) {  // the answers' rows are read by whoever answers
        const auto rows = static_cast<double>(k * row_bytes(blocks.kind, blocks.dim));
        for (const SearchResult& answer : answers) trial.count(answer.bytes - rows, answer.done);
    }
    return answers;
}

}  // namespace headlong
