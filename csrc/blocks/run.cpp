#include "blocks/run.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "runtime/trace.h"

namespace headlong {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();
constexpr int64_t kSeeds = 16;    // nodes of every level on the way to the first threshold
constexpr size_t kTogether = 8;   // rows that are scored at once
constexpr double kReached = 1.0 / 16;  // of the classes: with more of them to score, a sum is left to who looks at all
constexpr double kOpened = 0.5;          // of the coarsest nodes: where more are wanted, the same
constexpr size_t kPending = 32;   // classes between two closer looks, so that their records are on their way

float down(double x) { return -up(-x); }

// The largest of some numbers, those that are none left out.
float top_of(const float* x, int64_t n) {
    float top[4] = {-std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                    -std::numeric_limits<float>::infinity()};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int j = 0; j < 4; ++j) top[j] = x[i + j] > top[j] ? x[i + j] : top[j];
    for (; i < n; ++i) top[0] = x[i] > top[0] ? x[i] : top[0];
    return std::max(std::max(top[0], top[1]), std::max(top[2], top[3]));
}

}  // namespace

void Trail::begin(const Blocks& blocks, const LookQuery& own_look, const LookQuery& closer_look) {
    own = own_look;
    closer = closer_look;
    const auto leaves = static_cast<size_t>(blocks.levels.back().groups), most = (leaves + kMore + 4) * kNeighbours;
    if (at.size() < leaves) at.resize(leaves);
    if (est.size() < most) est.resize(most);
    if (upper.size() < most) upper.resize(most);
    groups.clear();
    places.clear();
    z.clear();
    // A box has its upper ends and its lower ones: half of x with each.
    const BlockLevel& root = blocks.levels.front();
    const auto nodes = static_cast<size_t>(root.groups * kNeighbours);
    if (boxes.size() < nodes) boxes.resize(nodes);
    float half[2 * kMostLook], top[kNeighbours];
    for (int64_t j = 0; j < blocks.look; ++j) half[j] = half[blocks.look + j] = 0.5f * own.x[j];
    const LookQuery middle{half, own.lengths, own.add, own.slack};
    for (int64_t g = 0; g < root.groups; ++g)
        blocks.looks->sixteen(root.records + g * root.shape.group_bytes(), root.shape, middle, 0, &boxes[g * kNeighbours], top);
}

bool Run::begin(int sharing) {
    mark("set-up");
    const bool held = w_.rotated.take(*b_, hidden_);
    mark("rotation");
    box_ = w_.rotated.box;
    own_ = w_.rotated.own;
    closer_ = w_.rotated.closer;
    answer_.bytes = w_.rotated.bytes / sharing;
    w_.candidates.clear();
    w_.pending.clear();
    w_.best.clear();
    w_.largest.clear();
    w_.ids.clear();
    if (!held) return false;
    roots(sharing);
    if (trail_ != nullptr) trail_->begin(*b_, own_, closer_);
    seed();
    if (!reaches() || b_->levels.size() == 1) return true;
    const auto wanted = std::count_if(w_.bounds.begin(), w_.bounds.end(), [&](float bound) { return bound >= tau_; });
    return static_cast<double>(wanted) <= kOpened * static_cast<double>(w_.bounds.size());
}

bool Run::enter(const Blocks& blocks, int sharing) {
    b_ = &blocks;
    closer_bytes_ = blocks.closer_shape.class_bytes();
    sieved_ = mask_ != nullptr || blocks.holes;
    if (!w_.rotated.take_again(blocks)) return false;
    box_ = w_.rotated.box;
    own_ = w_.rotated.own;
    closer_ = w_.rotated.closer;
    w_.candidates.clear();
    if (!reaches()) std::make_heap(w_.best.begin(), w_.best.end(), better);
    if (full_) tau_ = std::max(tau_, threshold());
    shared_ = nullptr;
    roots(sharing);
    seed();
    return true;
}

void Run::join(const Run& first, std::atomic<float>& threshold) {
    box_ = first.box_;
    own_ = first.own_;
    closer_ = first.closer_;
    bounds_ = first.bounds_;
    ends_ = first.ends_;
    seeded_ = first.seeded_;
    tau_ = first.tau_;
    share(&threshold);
    w_.candidates.clear();
    w_.pending.clear();
    w_.best.clear();
    w_.largest.clear();
    w_.ids.clear();
}

void Run::roots(int sharing) {
    const BlockLevel& root = b_->levels[0];
    w_.bounds.resize(root.groups * kNeighbours);
    bounds_ = w_.bounds.data();
    if (b_->levels.size() == 1) return;  // its nodes are classes
    if (b_->rays != nullptr) return ray_roots(sharing);
    float est[kNeighbours];
    const int64_t bytes = root.shape.group_bytes();
    for (int64_t g = 0; g < root.groups; ++g)
        b_->looks->sixteen(root.records + g * bytes, root.shape, box_, kLowest, est, &w_.bounds[g * kNeighbours]);
    answer_.bytes += static_cast<double>(root.groups * bytes) / sharing;
    mark("blocks: coarsest boxes");
}

// The same where nodes are pieces of rays: one product with every direction, and the ends of each node along its own.
void Run::ray_roots(int sharing) {
    const BlockLevel& root = b_->levels[0];
    const int64_t bytes = root.shape.group_bytes();
    w_.ends.resize(b_->ray_count);
    b_->looks->spread(b_->rays, b_->dim, b_->ray_count, own_.x, w_.ends.data());
    for (int64_t r = 0; r < b_->ray_count; ++r) w_.ends[r] *= b_->ray_scale[r];
    ends_ = w_.ends.data();
    float ends[kNeighbours];
    for (int64_t g = 0; g < root.groups; ++g) {
        for (int c = 0; c < kNeighbours; ++c) ends[c] = ends_[b_->owner[g * kNeighbours + c]];
        b_->looks->ray_nodes(root.records + g * bytes, root.shape, box_, ends, &w_.bounds[g * kNeighbours]);
    }
    const int64_t directions = b_->ray_count * (b_->dim + 4), nodes = root.groups * (bytes + 2 * kNeighbours);
    answer_.bytes += static_cast<double>(directions + nodes) / sharing;
    mark("blocks: coarsest boxes");
}

// The first threshold: down from the best nodes of every level to the classes of the best blocks. A tree beside has that of the
// trees before it.
void Run::seed() {
    w_.seeded.assign((b_->levels.back().groups + 63) / 64, 0);
    seeded_ = w_.seeded.data();
    if (b_->levels.size() == 1 || full_) return;
    const int64_t wanted = std::max(kSeeds, 2 * ((k_ + kNeighbours - 1) / kNeighbours));
    best_of(w_.bounds.data(), nullptr, static_cast<int64_t>(w_.bounds.size()), wanted, w_.next);
    float est[kNeighbours];
    std::vector<float> bounds;
    std::vector<int32_t> nodes;
    for (size_t level = 1; level + 1 < b_->levels.size(); ++level) {
        const BlockLevel& here = b_->levels[level];
        const int64_t bytes = here.shape.group_bytes();
        bounds.resize(w_.next.size() * kNeighbours);
        nodes.resize(bounds.size());
        for (size_t i = 0; i < w_.next.size(); ++i) {
            b_->looks->sixteen(here.records + w_.next[i] * bytes, here.shape, box_, kLowest, est, &bounds[i * kNeighbours]);
            answer_.bytes += static_cast<double>(bytes);
            for (int c = 0; c < kNeighbours; ++c) nodes[i * kNeighbours + c] = w_.next[i] * kNeighbours + c;
        }
        best_of(bounds.data(), nodes.data(), static_cast<int64_t>(bounds.size()), wanted, w_.next);
    }
    const int64_t bytes = b_->levels.back().shape.group_bytes();
    for (int32_t g : w_.next) prefetch(b_->levels.back().records + g * bytes, bytes);
    mark("blocks: way to the first ones");
    for (int32_t g : w_.next) {
        leaf(g, static_cast<double>(bytes));
        w_.seeded[g / 64] |= uint64_t{1} << (g % 64);
    }
    // The best of them are scored as they are: what that leaves out needs no closer look.
    std::vector<Candidate>& all = w_.pending;
    const size_t few = std::min<size_t>(reaches() ? std::max(k_, kSeeds) : k_, all.size());
    std::nth_element(all.begin(), all.begin() + few, all.end(), [](const Candidate& a, const Candidate& b) { return a.est > b.est; });
    for (size_t i = 0; i < few; ++i) ask(all[i]);
    all.erase(all.begin(), all.begin() + few);
    mark("blocks: boxes and blocks");
    settle();
    look_closer();
    settle();
}

// The largest bound of every sixteen in w_.tops; returns one that `wanted` of those reach: so many nodes are no lower.
float Run::take_tops(const float* bounds, int64_t count, int64_t wanted) {
    const int64_t groups = (count + kNeighbours - 1) / kNeighbours;
    w_.tops.resize(groups);
    for (int64_t g = 0; g < groups; ++g) w_.tops[g] = top_of(bounds + g * kNeighbours, std::min<int64_t>(kNeighbours, count - g * kNeighbours));
    if (groups < wanted) return kLowest;
    w_.sorted.assign(w_.tops.begin(), w_.tops.end());
    std::nth_element(w_.sorted.begin(), w_.sorted.begin() + (wanted - 1), w_.sorted.end(), std::greater<>());
    return w_.sorted[wanted - 1];
}

// The `wanted` nodes with the largest bounds that are there at all, the first ones among equals: few of many, so that hardly any
// gets into the heap.
void Run::best_of(const float* bounds, const int32_t* names, int64_t count, int64_t wanted, std::vector<int32_t>& out) {
    std::vector<std::pair<float, int32_t>>& heap = w_.highest;
    const auto above = [](const auto& a, const auto& b) { return a.first > b.first || (a.first == b.first && a.second < b.second); };
    heap.clear();
    const float least = take_tops(bounds, count, wanted);
    for (int64_t g = 0; g * kNeighbours < count; ++g) {
        if (!(w_.tops[g] >= least)) continue;
        for (int64_t n = g * kNeighbours; n < std::min(count, (g + 1) * kNeighbours); ++n) {
            const bool filled = static_cast<int64_t>(heap.size()) == wanted;
            if (!(bounds[n] >= kLowest) || (filled && !(bounds[n] > heap.front().first))) continue;
            if (filled) {
                std::pop_heap(heap.begin(), heap.end(), above);
                heap.pop_back();
            }
            heap.push_back({bounds[n], names == nullptr ? static_cast<int32_t>(n) : names[n]});
            std::push_heap(heap.begin(), heap.end(), above);
        }
    }
    out.clear();
    for (const auto& one : heap) out.push_back(one.second);
    std::sort(out.begin(), out.end());
}

void Run::place(int64_t nodes, int16_t* bins, std::vector<int32_t>& listed) const {
    w_.next.clear();
    for (int64_t first = 0; first < nodes; first += kNeighbours) {
        const int64_t stop = std::min<int64_t>(nodes, first + kNeighbours);
        if (!(top_of(bounds_ + first, stop - first) >= tau_)) continue;  // few of many reach it
        for (int64_t n = first; n < stop; ++n)
            if (bounds_[n] >= tau_) w_.next.push_back(static_cast<int32_t>(n));
    }
    float most = tau_;
    for (int32_t n : w_.next)
        if (bounds_[n] < kMostX) most = std::max(most, bounds_[n]);
    const float width = most > tau_ && tau_ > -kMostX ? (kBins - 1) / (most - tau_) : 0;
    for (int32_t n : w_.next) {
        const float at = (bounds_[n] - tau_) * width;  // beyond all, or where there is no threshold yet: the first bin
        const auto bin = static_cast<int16_t>(kBins - 1 - (at < kBins - 1 ? static_cast<int>(at) : kBins - 1));
        if (bins[n] == kBins) listed.push_back(n);
        bins[n] = std::min(bins[n], bin);
    }
}

uint32_t Run::open(const uint8_t* record, const RecordShape& shape, double bytes) {
    float est[kNeighbours], upper[kNeighbours];
    answer_.bytes += bytes;
    return b_->looks->sixteen(record, shape, box_, tau_, est, upper);
}

void Run::leaf(int32_t group, double bytes) {
    const BlockLevel& here = b_->levels.back();
    float own_est[kNeighbours], own_upper[kNeighbours], *est = own_est, *upper = own_upper;
    if (trail_ != nullptr) {
        const size_t at = trail_->groups.size() * kNeighbours;
        est = &trail_->est[at], upper = &trail_->upper[at];
        trail_->at[group] = static_cast<int32_t>(trail_->groups.size());
        trail_->groups.push_back(group);
    }
    if (shared_ != nullptr) tau_ = std::max(tau_, shared_->load(std::memory_order_relaxed));
    const uint8_t* record = here.records + group * here.shape.group_bytes();
    uint32_t open = b_->rays == nullptr ? b_->looks->sixteen(record, here.shape, own_, tau_, est, upper)
                                        : b_->looks->ray(record, here.shape, own_, ends_[b_->owner[group]], tau_, est, upper);
    ++opened_;
    answer_.bytes += bytes;
    if (b_->there != nullptr) open &= b_->there[group];
    for (; open != 0; open &= open - 1) {
        const int c = __builtin_ctz(open);
        const int32_t place = group * kNeighbours + c;
        if (sieved_ && !is_there(b_->order[place])) continue;
        if (b_->closer != nullptr && full_) prefetch(b_->closer + place * closer_bytes_, closer_bytes_);
        w_.pending.push_back({place, est[c], upper[c]});
    }
    if (full_ && w_.pending.size() >= kPending) look_closer();
}

// Looks closer at the classes that are pending. One whose estimate reaches the threshold is scored soon, which raises it.
void Run::look_closer() {
    mark("blocks: boxes and blocks");
    for (Candidate one : w_.pending) {
        if (!(one.upper >= tau_)) continue;
        if (b_->closer != nullptr) {
            one.upper = b_->looks->closer(b_->closer + one.place * closer_bytes_, b_->closer_shape, closer_, &one.est);
            answer_.bytes += static_cast<double>(closer_bytes_);
            if (!(one.upper >= tau_)) continue;
        }
        if (full_ && one.est >= tau_) {
            ask(one);
            if (w_.ids.size() >= kTogether) settle();
        } else {
            w_.candidates.push_back(one);
        }
    }
    w_.pending.clear();
    mark("blocks: closer looks");
}

// The row of a class is wanted.
void Run::ask(const Candidate& of) {
    const int64_t id = b_->order[of.place];
    if (id < 0) return;  // a file may say that there is a record where there is no class
    w_.ids.push_back(id);
    if (trail_ != nullptr) trail_->places.push_back(of.place);
    const int64_t bytes = b_->dim * (b_->kind == Kind::f32 ? 4 : 2);
    prefetch(static_cast<const uint8_t*>(b_->weight) + id * bytes, bytes);
}

// Scores the rows that were asked for; the threshold is the k-th best of all that were.
void Run::settle() {
    if (w_.ids.empty()) return;
    mark("blocks: closer looks");
    w_.z.resize(w_.ids.size());
    b_->kernels->dot_rows(b_->weight, b_->kind, b_->dim, w_.ids.data(), static_cast<int64_t>(w_.ids.size()), hidden_, w_.z.data());
    for (size_t i = 0; i < w_.ids.size(); ++i) {
        const double z = b_->bias == nullptr ? w_.z[i] : w_.z[i] + b_->bias[w_.ids[i]];
        if (trail_ != nullptr) trail_->z.push_back(z);
        keep({b_->names == nullptr ? w_.ids[i] : b_->names[w_.ids[i]], std::isfinite(z) ? z : kNone});
    }
    answer_.rows += static_cast<int64_t>(w_.ids.size());
    answer_.bytes += static_cast<double>(w_.ids.size()) * static_cast<double>(b_->dim * (b_->kind == Kind::f32 ? 4 : 2));
    w_.ids.clear();
    full_ = static_cast<int64_t>(w_.best.size()) >= k_;
    if (full_) raise(threshold());
    mark("blocks: exact rows");
}

// What a class has to reach: the k-th best, and where there is a reach the least that it asks for, if that is lower.
float Run::threshold() const {
    if (!reaches()) return down(w_.best.front().z);
    return down(std::min(w_.largest.front(), (shift_ + std::log(sum_) - reach_.depth) / reach_.scale));
}

// The logit joins the sum and the k largest.
void Run::weigh(double z) {
    w_.largest.push_back(z);
    std::push_heap(w_.largest.begin(), w_.largest.end(), std::greater<>());
    if (static_cast<int64_t>(w_.largest.size()) > k_) {
        std::pop_heap(w_.largest.begin(), w_.largest.end(), std::greater<>());
        w_.largest.pop_back();
    }
    const double power = reach_.scale * z;
    if (!(power > kNone)) return;
    if (power > shift_) {
        sum_ *= std::exp(shift_ - power);
        shift_ = power;
    }
    sum_ += std::exp(power - shift_);
}

// Among the k best, if it is one of them; with a reach all are kept.
void Run::keep(const ScoredClass& one) {
    w_.best.push_back(one);
    if (reaches()) return weigh(one.z);
    std::push_heap(w_.best.begin(), w_.best.end(), better);
    if (static_cast<int64_t>(w_.best.size()) <= k_) return;
    std::pop_heap(w_.best.begin(), w_.best.end(), better);
    w_.best.pop_back();
}

void Run::add(const std::vector<ScoredClass>& best, int64_t opened) {
    for (const ScoredClass& one : best) keep(one);
    opened_ += opened;
    full_ = static_cast<int64_t>(w_.best.size()) >= k_;
    if (full_) raise(threshold());
}

void Run::raise(float threshold) {
    tau_ = std::max(tau_, threshold);
    if (shared_ == nullptr) return;
    float known = shared_->load(std::memory_order_relaxed);
    while (known < tau_ && !shared_->compare_exchange_weak(known, tau_, std::memory_order_relaxed)) {
    }
    tau_ = std::max(tau_, known);
}

bool Run::close() {
    std::vector<Candidate>& all = w_.candidates;
    look_closer();
    settle();
    if (shared_ != nullptr) tau_ = std::max(tau_, shared_->load(std::memory_order_relaxed));
    size_t left = 0;
    for (const Candidate& one : all)
        if (one.upper >= tau_) all[left++] = one;
    all.resize(left);
    const double share = reaches() ? kReached : b_->most;
    if (static_cast<double>(left) > std::max(64.0 + static_cast<double>(k_), share * static_cast<double>(b_->vocab))) return false;
    std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.upper > b.upper; });
    for (const Candidate& one : all) {
        if (!(one.upper >= tau_)) break;
        ask(one);
        if (w_.ids.size() >= kTogether) settle();
    }
    settle();
    std::sort(w_.best.begin(), w_.best.end(), better);
    mark("blocks: exact rows");
    return true;
}

}  // namespace headlong
