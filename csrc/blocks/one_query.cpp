#include "blocks/one_query.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "kernels/any_rows.h"
#include "runtime/shared_work.h"
#include "sampling/largest_key.h"

namespace headlong {
namespace {

constexpr double kMostLogit = 0x1p127;  // that float32 holds whichever way it is rounded
constexpr double kNone = -std::numeric_limits<double>::infinity();
constexpr size_t kScoredAtOnce = 8;   // rows that are scored at once
constexpr double kDrawn = 1.0 / 16;  // of the classes: with more of them to score, a draw is left to a scan
constexpr size_t kPending = 32;   // classes between two closer looks, so that their records are on their way

float down(double x) { return -up(-x); }

}  // namespace

bool OneQuery::begin() {
    const bool held = w_.rotated.take(*b_, hidden_);
    box_ = w_.rotated.box;
    own_ = w_.rotated.own;
    closer_ = w_.rotated.closer;
    answer_.bytes = w_.rotated.bytes;
    w_.candidate_count = 0;
    w_.pending.count = 0;
    w_.best.clear();
    w_.ids.clear();
    if (!held) return false;
    roots();
    seed();
    if (draws()) {
        look_at_lucky(0, keys_->luckiest);
        look_at_lucky(keys_->luckiest, keys_->lucky.size());
    }
    return true;
}

bool OneQuery::enter(const Blocks& blocks) {
    b_ = &blocks;
    closer_bytes_ = blocks.closer_shape.class_bytes();
    if (!w_.rotated.take_again(blocks)) return false;
    box_ = w_.rotated.box;
    own_ = w_.rotated.own;
    closer_ = w_.rotated.closer;
    w_.candidate_count = 0;
    std::make_heap(w_.best.begin(), w_.best.end(), order_);
    if (full_) tau_ = std::max(tau_, threshold());
    shared_ = nullptr;
    roots();
    seed();
    return true;
}

void OneQuery::join(const OneQuery& first, float floor, std::atomic<float>& threshold) {
    box_ = first.box_;
    own_ = first.own_;
    closer_ = first.closer_;
    bounds_ = first.bounds_;
    seeded_ = first.seeded_;
    tau_ = floor;
    full_ = draws();
    share(&threshold);
    w_.candidate_count = 0;
    w_.pending.count = 0;
    w_.best.clear();
    w_.ids.clear();
}

const std::vector<int32_t>& OneQuery::place() const {
    std::vector<int32_t>& found = w_.next;
    const auto nodes = static_cast<int64_t>(b_->levels[0].groups) * kNeighbours;
    if (static_cast<int64_t>(w_.room.size()) < nodes + kNeighbours) w_.room.resize(nodes + kNeighbours);
    found.assign(w_.room.begin(), w_.room.begin() + b_->looks->listed(bounds_, nodes, tau_, w_.room.data()));
    float most = tau_;
    for (int32_t n : found) most = bounds_[n] > most && bounds_[n] < kMostX ? bounds_[n] : most;
    const float width = most > tau_ && tau_ > -kMostX ? (kBins - 1) / (most - tau_) : 0;
    w_.bins.resize(found.size());
    for (size_t i = 0; i < found.size(); ++i) {
        const float at = (bounds_[found[i]] - tau_) * width;  // beyond all, or where there is no threshold yet: the first bin
        w_.bins[i] = static_cast<uint8_t>(kBins - 1 - (at < kBins - 1 ? static_cast<int>(at) : kBins - 1));
    }
    return found;
}

uint32_t OneQuery::open(const uint8_t* record, const RecordShape& shape, double bytes) {
    float est[kNeighbours], upper[kNeighbours];
    answer_.bytes += bytes;
    return b_->looks->sixteen(record, shape, box_, tau_, est, upper);
}

// Those of a block whose classes are there and not masked.
uint32_t OneQuery::sieve(uint32_t open, int32_t group) const {
    if (b_->there != nullptr) open &= b_->there[group];
    if (mask_ == nullptr) return open;
    for (uint32_t left = open; left != 0; left &= left - 1) {
        const int c = __builtin_ctz(left);
        if (!is_there(b_->order[group * kNeighbours + c])) open &= ~(uint32_t{1} << c);
    }
    return open;
}

void OneQuery::leaf(int32_t group, double bytes) {
    const BlockLevel& here = b_->levels.back();
    float est[kNeighbours], upper[kNeighbours];
    if (shared_ != nullptr) tau_ = std::max(tau_, shared_->load(std::memory_order_relaxed));
    const uint8_t* record = here.records + group * here.shape.group_bytes();
    const uint32_t open = b_->looks->sixteen(record, here.shape, own_, tau_, est, upper);
    ++opened_;
    answer_.bytes += bytes;
    Pending& to = w_.pending;
    const OpenClasses end = to.end();
    const int64_t more = b_->looks->taken(sieve(open, group), group * kNeighbours, est, upper, end);
    to.count += static_cast<size_t>(more);
    if (!full_) return;
    if (b_->closer != nullptr)
        for (int64_t i = 0; i < more; ++i) prefetch(b_->closer + end.places[i] * closer_bytes_, closer_bytes_);
    if (to.count >= kPending) look_closer();
}

void OneQuery::leaves(const std::vector<int32_t>& groups, int64_t start, int64_t stop) {
    const BlockLevel& here = b_->levels.back();
    const int64_t bytes = here.shape.group_bytes(), known = static_cast<int64_t>(groups.size());
    BlockList list{here.records, here.shape, bounds_, b_->there, b_->closer, closer_bytes_, nullptr, 0, 0};
    if (b_->closer == nullptr) list.closer_bytes = 0;
    while (start < stop) {
        if (!full_ || mask_ != nullptr) {
            if (wants(groups[start])) leaf(groups[start], static_cast<double>(bytes));
            ++start;
            continue;
        }
        if (shared_ != nullptr) tau_ = std::max(tau_, shared_->load(std::memory_order_relaxed));
        Pending& to = w_.pending;
        const size_t most = to.count < kPending ? kPending - to.count : 1;
        list.groups = &groups[start], list.count = stop - start, list.known = known - start;
        const BlocksOpened some = b_->looks->opened(list, own_, tau_, static_cast<int64_t>(most), to.end(most));
        start += some.passed;
        opened_ += some.opened;
        answer_.bytes += static_cast<double>(some.opened * bytes);
        to.count += static_cast<size_t>(some.found);
        if (to.count >= kPending) look_closer();
    }
}

// Looks closer at the classes that are pending.
void OneQuery::look_closer() {
    Pending& from = w_.pending;
    for (size_t first = 0; first < from.count; first += kPending) {
        const size_t count = std::min(kPending, from.count - first);
        if (b_->closer != nullptr) {
            const int64_t looked = b_->looks->closer_of(b_->closer, b_->closer_shape, closer_, tau_, from.from(first), static_cast<int64_t>(count));
            answer_.bytes += static_cast<double>(looked * closer_bytes_);
        }
        sort_out(first, count);
    }
    from.count = 0;
}

// Those of the pending classes that reach the threshold become candidates. One whose estimate does is scored soon, which raises it.
void OneQuery::sort_out(size_t first, size_t count) {
    const Pending& from = w_.pending;
    if (w_.candidates.size() < w_.candidate_count + count + 1) w_.candidates.resize(2 * (w_.candidate_count + count + 1));
    const float *est = from.est.data(), *upper = from.upper.data();
    Candidate *const all = w_.candidates.data(), *to = all + w_.candidate_count;
    for (size_t i = first; i < first + count; ++i) {
        *to = {from.places[i], upper[i]};
        const bool here = upper[i] >= tau_ && may_win(*to);
        if (full_ && here && est[i] >= tau_) {
            ask(from.places[i]);
            if (w_.ids.size() >= kScoredAtOnce) settle();
        } else {
            to += here;  // as a branch it would be guessed wrong
        }
    }
    w_.candidate_count = static_cast<size_t>(to - all);
}

// The row of a class is wanted.
void OneQuery::ask(int32_t place) {
    const int64_t id = b_->order[place];
    if (id < 0) return;  // a file may say that there is a record where there is no class
    w_.ids.push_back(id);
    const int64_t bytes = row_bytes(b_->kind, b_->dim);
    prefetch(static_cast<const uint8_t*>(b_->weight) + id * bytes, bytes);
}

// Scores the rows that were asked for; the threshold is the k-th best of all that were.
void OneQuery::settle() {
    if (w_.ids.empty()) return;
    w_.z.resize(w_.ids.size());
    dot_rows(*b_->kernels, b_->weight, b_->kind, b_->dim, w_.ids.data(), static_cast<int64_t>(w_.ids.size()), hidden_, w_.z.data());
    for (size_t i = 0; i < w_.ids.size(); ++i) {
        const double z = b_->bias == nullptr ? w_.z[i] : w_.z[i] + b_->bias[w_.ids[i]];
        keep({b_->names == nullptr ? w_.ids[i] : b_->names[w_.ids[i]], std::isfinite(z) ? z : kNone});
    }
    answer_.rows += static_cast<int64_t>(w_.ids.size());
    answer_.bytes += static_cast<double>(w_.ids.size()) * static_cast<double>(row_bytes(b_->kind, b_->dim));
    w_.ids.clear();
    full_ = is_full();
    if (full_) raise(threshold());
}

// What a class has to reach: the k-th best, or what a draw asks for.
float OneQuery::threshold() const {
    if (draws()) return down(std::clamp(keys_->least(), -kMostLogit, kMostLogit));
    return down(w_.best.front().z);
}

// Among the k best, if it is one of them.
void OneQuery::keep(const Scored& one) {
    if (draws()) return keys_->take(one.id, one.z);
    if (static_cast<int64_t>(w_.best.size()) == k_ && !order_(one, w_.best.front())) {
        dropped_ = std::max(dropped_, one.z);
        return;
    }
    w_.best.push_back(one);
    std::push_heap(w_.best.begin(), w_.best.end(), order_);
    if (static_cast<int64_t>(w_.best.size()) <= k_) return;
    std::pop_heap(w_.best.begin(), w_.best.end(), order_);
    dropped_ = std::max(dropped_, w_.best.back().z);
    w_.best.pop_back();
}

bool OneQuery::told_apart() const {
    const auto count = static_cast<int64_t>(w_.best.size());
    for (int64_t i = 0; several_ && i < std::min(k_, count); ++i)
        if (near_.may_beat(i + 1 < count ? w_.best[i + 1].z : dropped_, w_.best[i].z)) return false;
    return true;
}

void OneQuery::add(int64_t opened) {
    opened_ += opened;
    full_ = is_full();
    if (full_) raise(threshold());
}

void OneQuery::raise(float threshold) {
    tau_ = std::max(tau_, threshold);
    if (shared_ == nullptr) return;
    raise_to(*shared_, tau_);
    tau_ = std::max(tau_, shared_->load(std::memory_order_relaxed));
}

// Whether a candidate is worth its row where a sample is drawn: its own noise says so.
bool OneQuery::may_win(const Candidate& one) const {
    return !draws() || (b_->order[one.place] >= 0 && keys_->may_win(b_->order[one.place], one.upper));
}

bool OneQuery::close() {
    std::vector<Candidate>& all = w_.candidates;
    look_closer();
    settle();
    if (shared_ != nullptr) tau_ = std::max(tau_, shared_->load(std::memory_order_relaxed));
    size_t left = 0;
    for (size_t i = 0; i < w_.candidate_count; ++i) {
        all[left] = all[i];
        left += all[left].upper >= tau_ && may_win(all[left]);
    }
    const double share = draws() ? kDrawn : b_->most;
    if (static_cast<double>(left) > std::max(64.0 + static_cast<double>(k_), share * static_cast<double>(b_->vocab))) return false;
    const auto end = all.begin() + static_cast<int64_t>(left);
    std::sort(all.begin(), end, [](const Candidate& a, const Candidate& b) { return a.upper > b.upper; });
    for (auto one = all.begin(); one != end && one->upper >= tau_; ++one) {
        ask(one->place);
        if (w_.ids.size() >= kScoredAtOnce) settle();
    }
    settle();
    std::sort(w_.best.begin(), w_.best.end(), order_);
    order_.settle(w_.best);
    return true;
}

}  // namespace headlong
