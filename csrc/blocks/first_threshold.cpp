// A query's bounds on the coarsest nodes, and its first threshold: down from the best nodes of every level to the classes of the best
// blocks, of which those with the highest estimates are scored.
#include <algorithm>
#include <limits>

#include "blocks/one_query.h"
#include "sampling/largest_key.h"

namespace headlong {
namespace {

constexpr size_t kAtOnce = 8;   // rows that are scored at once
constexpr int64_t kSeeds = 16;  // nodes of every level on the way to the first threshold

}  // namespace

void OneQuery::roots() {
    const BlockLevel& root = b_->levels[0];
    w_.bounds.resize(root.groups * kNeighbours);
    bounds_ = w_.bounds.data();
    if (b_->levels.size() == 1) return;  // its nodes are classes
    float est[kNeighbours];
    const int64_t bytes = root.shape.group_bytes();
    for (int64_t g = 0; g < root.groups; ++g) {
        b_->looks->sixteen(root.records + g * bytes, root.shape, box_, kLowest, est, &w_.bounds[g * kNeighbours]);
    }
    answer_.bytes += static_cast<double>(root.groups * bytes);
}

// A second tree has the threshold of the trees before it.
void OneQuery::seed() {
    w_.seeded.assign((b_->levels.back().groups + 63) / 64, 0);
    seeded_ = w_.seeded.data();
    if (b_->levels.size() == 1 || full_) return;
    first_blocks();
    const int64_t bytes = b_->levels.back().shape.group_bytes();
    for (int32_t g : w_.next) prefetch(b_->levels.back().records + g * bytes, bytes);
    for (int32_t g : w_.next) {
        leaf(g, static_cast<double>(bytes));
        w_.seeded[g / 64] |= uint64_t{1} << (g % 64);
        if (b_->levels.size() == 2) w_.bounds[g] = -std::numeric_limits<float>::infinity();  // it needs no second look
    }
    first_rows();
    settle();
    look_closer();
    settle();
}

// The best blocks in w_.next.
void OneQuery::first_blocks() {
    const int64_t wanted = std::max(kSeeds, 2 * ((k_ + kNeighbours - 1) / kNeighbours));
    choose(w_.bounds.data(), static_cast<int64_t>(w_.bounds.size()), wanted, w_.next);
    float est[kNeighbours];
    for (size_t level = 1; level + 1 < b_->levels.size(); ++level) {
        const BlockLevel& here = b_->levels[level];
        const int64_t bytes = here.shape.group_bytes();
        w_.below.resize(w_.next.size() * kNeighbours);
        for (size_t i = 0; i < w_.next.size(); ++i) {
            b_->looks->sixteen(here.records + w_.next[i] * bytes, here.shape, box_, kLowest, est, &w_.below[i * kNeighbours]);
            answer_.bytes += static_cast<double>(bytes);
        }
        std::vector<int32_t>& chosen = w_.chosen;
        choose(w_.below.data(), static_cast<int64_t>(w_.below.size()), wanted, chosen);
        for (int32_t& n : chosen) n = w_.next[n / kNeighbours] * kNeighbours + n % kNeighbours;
        w_.next.swap(chosen);
    }
}

// Asks for the classes with the highest estimates, as they are: what that leaves out needs no closer look.
void OneQuery::first_rows() {
    Pending& all = w_.pending;
    const auto few = std::min(draws() ? std::max(k_, kSeeds) : k_, static_cast<int64_t>(all.count));
    const auto padded = static_cast<int64_t>((all.count + kNeighbours - 1) / kNeighbours) * kNeighbours;
    all.end();
    std::fill(all.est.begin() + static_cast<int64_t>(all.count), all.est.begin() + padded, -std::numeric_limits<float>::infinity());
    choose(all.est.data(), padded, few, w_.chosen);
    for (int32_t i : w_.chosen) {
        ask(all.places[i]);
        all.upper[i] = -std::numeric_limits<float>::infinity();  // no second time
    }
}

// Classes of a draw with high noise, whose logits may be low: one after the other by the bounds that there are, those of their nodes,
// their blocks and closer looks, then by their rows. What comes next is on its way meanwhile.
void OneQuery::look_at_lucky(size_t start, size_t stop) {
    const LargestKey& key = *keys_;
    const BlockLevel& leaves = b_->levels.back();
    const int64_t bytes = leaves.shape.group_bytes();
    const auto depth = static_cast<int>(4 * (b_->levels.size() - 1));
    std::vector<LuckyPlace>& some = w_.lucky;
    some.clear();
    for (size_t i = start; i < stop; ++i) {
        const int32_t place = b_->places.of[key.lucky[i].id];
        // A node that was opened already has no bound any more.
        if (depth > 0 && bounds_[place >> depth] >= kLowest && !key.may_win(key.lucky[i], bounds_[place >> depth])) continue;
        prefetch(leaves.records + place / kNeighbours * bytes, bytes);
        some.push_back({place, static_cast<int32_t>(i), 0});
    }
    size_t left = 0;
    for (const LuckyPlace& one : some) {
        const int32_t group = one.place / kNeighbours;
        const uint8_t* record = leaves.records + group * bytes;
        float est[kNeighbours], upper[kNeighbours];
        b_->looks->sixteen(record, leaves.shape, own_, kLowest, est, upper);
        answer_.bytes += static_cast<double>(bytes);
        if (!key.may_win(key.lucky[one.which], upper[one.place % kNeighbours])) continue;
        if (b_->closer != nullptr) prefetch(b_->closer + one.place * closer_bytes_, closer_bytes_);
        some[left++] = {one.place, one.which, est[one.place % kNeighbours]};
    }
    some.resize(left);
    for (LuckyPlace& one : some) {
        if (b_->closer != nullptr) {
            const float upper = b_->looks->closer(b_->closer + one.place * closer_bytes_, b_->closer_shape, closer_, &one.est);
            answer_.bytes += static_cast<double>(closer_bytes_);
            if (!key.may_win(key.lucky[one.which], upper)) continue;
        }
        ask(one.place);
        if (w_.ids.size() >= kAtOnce) settle();
    }
    settle();
}

// Which `wanted` of x [n] are the largest, rising, the first ones among equals; of those that are there at all.
void OneQuery::choose(const float* x, int64_t n, int64_t wanted, std::vector<int32_t>& out) {
    std::vector<int32_t>& room = w_.room;
    if (static_cast<int64_t>(room.size()) < n + kNeighbours) room.resize(n + kNeighbours);
    if (static_cast<int64_t>(w_.scratch.size()) < n + kNeighbours) w_.scratch.resize(n + kNeighbours);
    const bool few = wanted <= kNeighbours;
    const int64_t found = few ? b_->looks->largest(x, n, wanted, kLowest, w_.scratch.data(), room.data())
                              : b_->looks->listed(x, n, kLowest, room.data());
    out.assign(room.begin(), room.begin() + found);
    if (found <= wanted) return;
    std::nth_element(out.begin(), out.begin() + wanted, out.end(), [&](int32_t a, int32_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); });
    out.resize(wanted);
    std::sort(out.begin(), out.end());
}

}  // namespace headlong
