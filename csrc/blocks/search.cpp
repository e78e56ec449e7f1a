// One query's way through the blocks: all nodes of the coarsest level, the classes below the best of them for a threshold, then
// every node whose bound reaches it, in the order of memory; what stays open is looked at closer, then scored, best first.
#include "blocks/search.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "runtime/pool.h"

namespace headlong {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();
constexpr float kLowest = -std::numeric_limits<float>::max();  // what pads a record is below: there is nothing beneath it
constexpr int64_t kSeeds = 16;     // nodes of every level on the way to the first threshold
constexpr size_t kTogether = 8;    // rows that are scored at once
constexpr size_t kPending = 32;    // classes between two closer looks, so that their records are on their way
constexpr int64_t kAhead = 6;      // records asked for before they are read
constexpr int kBins = 256;          // of bounds, from the highest down
constexpr float kMostX = 1e30f;    // coordinates beyond are left to the other levels

bool better(const Found& a, const Found& b) { return a.z > b.z || (a.z == b.z && a.id < b.id); }

void prefetch(const uint8_t* from, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at);
}

float up(double x) {
    const float y = static_cast<float>(x);
    return static_cast<double>(y) < x ? std::nextafter(y, std::numeric_limits<float>::infinity()) : y;
}

float down(double x) { return -up(-x); }

double norm(const double* x, int64_t start, int64_t stop) {
    double sum = 0;
    for (int64_t j = start; j < stop; ++j) sum += x[j] * x[j];
    return std::sqrt(sum);
}

// A class that may be among the best: where it is, its estimate and its upper end.
struct Candidate {
    int32_t place;
    float est, upper;
};

// What one thread needs for a query, kept from call to call.
struct Work {
    std::vector<double> shifted, turned, given, rest_lengths;
    std::vector<float> left, rest;
    std::vector<float> x, signs, bounds, lengths, closer_lengths;
    std::vector<float> sorted;
    std::vector<int32_t> open, next;
    std::vector<Candidate> candidates, pending;
    std::vector<Found> best;
    std::vector<int64_t> ids;
    std::vector<double> z;
    std::vector<uint64_t> seeded;
};

class Run {
  public:
    Run(const Blocks& blocks, const double* hidden, int64_t k, const uint8_t* mask, Work& work, Search& answer)
        : b_(blocks), hidden_(hidden), k_(k), mask_(mask), w_(work), answer_(answer) {}

    void go() {
        if (!prepare()) return;
        roots();
        seed();
        w_.open.clear();
        const int64_t nodes = b_.levels[0].groups * kNeighbours;
        if (b_.levels.size() == 1) {
            for (int64_t g = 0; g < b_.levels[0].groups; ++g) leaf(static_cast<int32_t>(g));
        } else {
            open_roots(nodes);
            descend(1, w_.open.data(), static_cast<int64_t>(w_.open.size()), true);
        }
        if (!close()) return;
        std::sort(w_.best.begin(), w_.best.end(), better);
        answer_.best.assign(w_.best.begin(), w_.best.begin() + std::min<int64_t>(k_, w_.best.size()));
        answer_.opened = static_cast<double>(opened_) / static_cast<double>(b_.levels.back().groups);
        answer_.done = true;
    }

  private:
    // The query as every level wants it. False where float32 cannot hold it.
    bool prepare() {
        const int64_t dim = b_.dim, width = b_.width;
        w_.shifted.resize(dim);
        w_.turned.resize(width);
        double length = 0, add = 0;
        for (int64_t j = 0; j < dim; ++j) {
            w_.shifted[j] = hidden_[j] - b_.mean[j];
            length += w_.shifted[j] * w_.shifted[j];
        }
        length = std::sqrt(length) * (1 + 1e-12);
        if (b_.centre != nullptr)
            for (int64_t j = 0; j < dim; ++j) add += hidden_[j] * b_.centre[j];
        b_.kernels->dot_rows(b_.head, b_.turn_kind, dim, nullptr, width, w_.shifted.data(), w_.turned.data());
        const double* x = w_.turned.data();
        w_.x.assign(width + kNeighbours, 0.f);
        w_.signs.resize(2 * b_.look);
        float most = 0;
        for (int64_t j = 0; j < width; ++j) {
            w_.x[j] = static_cast<float>(x[j]);
            most = std::max(most, std::fabs(w_.x[j]));
            if (j >= b_.look) continue;
            w_.signs[j] = std::max(w_.x[j], 0.f);
            w_.signs[b_.look + j] = std::min(w_.x[j], 0.f);
        }
        const double halves[4] = {norm(x, 0, b_.look), norm(x, b_.look, width), 1, length};
        w_.lengths.clear();
        w_.closer_lengths.clear();
        take_rest(x, length);
        for (size_t s = 0, behind = 0; s + 1 < b_.edges.size(); ++s) {
            const double exact = b_.edges[s] < width ? norm(x, b_.edges[s], b_.edges[s + 1]) : w_.rest_lengths[behind++];
            const float size = up(exact * b_.factor * (1 + 0x1p-18));
            w_.lengths.push_back(size);
            if (static_cast<int64_t>(s) >= b_.closer_from) w_.closer_lengths.push_back(size);
        }
        double shared = 0, closer = 0;
        for (int h = 0; h < 4; ++h) {
            shared += b_.shared[h] * halves[h];
            closer += b_.closer_shared[h] * halves[h];
        }
        w_.lengths.push_back(up(shared * (1 + 0x1p-18)));
        w_.closer_lengths.push_back(up(closer * (1 + 0x1p-18)));
        const float slack = up(std::fabs(add) * 0x1p-20 + 0x1p-100);
        box_ = {w_.signs.data(), w_.lengths.data(), static_cast<float>(add), slack};
        class_ = {w_.x.data(), w_.lengths.data(), static_cast<float>(add), slack};
        closer_ = {w_.x.data() + b_.look, w_.closer_lengths.data(), 0, slack};
        for (float size : w_.lengths) most = std::max(most, size);
        for (float size : w_.closer_lengths) most = std::max(most, size);
        answer_.bytes = static_cast<double>(dim * width * (b_.rest == nullptr ? 1 : 2)) * (b_.turn_kind == Kind::f32 ? 4 : 2) +
                        static_cast<double>(dim * b_.rest_width);
        w_.candidates.clear();
        w_.pending.clear();
        w_.best.clear();
        w_.ids.clear();
        return most <= kMostX && std::fabs(class_.add) <= kMostX;
    }

    // No less than the lengths of the segments behind `width`: of what x back leaves of the query, by codes of the rotation, and what
    // that is off. (What x back gives has next to no part in them, and is most of the query.)
    void take_rest(const double* x, double length) {
        w_.rest_lengths.clear();
        if (b_.rest == nullptr) return;
        const int64_t dim = b_.dim, width = b_.width;
        w_.left.resize(dim);
        w_.rest.resize(b_.rest_width);
        w_.given.resize(dim);
        b_.kernels->rotate(b_.back, b_.turn_kind, dim, width, 0, dim, x, width, 1, w_.given.data(), dim);
        double square = 0;
        for (int64_t j = 0; j < dim; ++j) {
            w_.left[j] = static_cast<float>(w_.shifted[j] - w_.given[j]);
            square += static_cast<double>(w_.left[j]) * w_.left[j];
        }
        b_.looks->spread(b_.rest, dim, b_.rest_width, w_.left.data(), w_.rest.data());
        const double left = std::sqrt(square), size = norm(x, 0, width);
        const double* lost = b_.rest_lost.data();
        for (size_t s = 0; s + 1 < b_.edges.size(); ++s) {
            if (b_.edges[s] < width) continue;
            double sum = 0;
            for (int64_t j = b_.edges[s] - width; j < b_.edges[s + 1] - width; ++j) {
                const double one = static_cast<double>(w_.rest[j]) * b_.rest_scale[j];
                sum += one * one;
            }
            w_.rest_lengths.push_back(std::sqrt(sum) * (1 + 0x1p-20) + lost[0] * left + lost[1] * length + lost[2] * size);
            lost += 3;
        }
    }

    void roots() {
        const BlockLevel& root = b_.levels[0];
        w_.bounds.resize(root.groups * kNeighbours);
        if (b_.levels.size() == 1) return;  // its nodes are classes, which seed() and go() look at
        float est[kNeighbours];
        const int64_t bytes = root.shape.group_bytes();
        for (int64_t g = 0; g < root.groups; ++g)
            b_.looks->sixteen(root.records + g * bytes, root.shape, box_, kLowest, est, &w_.bounds[g * kNeighbours]);
        answer_.bytes += static_cast<double>(root.groups * bytes);
    }

    // The first threshold: down from the best nodes of every level to the classes of the best blocks.
    void seed() {
        const int64_t blocks = b_.levels.back().groups;
        w_.seeded.assign((blocks + 63) / 64, 0);
        if (b_.levels.size() == 1) return;
        const int64_t wanted = std::max(kSeeds, 2 * ((k_ + kNeighbours - 1) / kNeighbours));
        best_of(w_.bounds.data(), nullptr, static_cast<int64_t>(w_.bounds.size()), wanted, w_.next);
        float est[kNeighbours];
        std::vector<float> bounds;
        std::vector<int32_t> nodes;
        for (size_t level = 1; level + 1 < b_.levels.size(); ++level) {
            const BlockLevel& here = b_.levels[level];
            const int64_t bytes = here.shape.group_bytes();
            bounds.resize(w_.next.size() * kNeighbours);
            nodes.resize(bounds.size());
            for (size_t i = 0; i < w_.next.size(); ++i) {
                here_is(level, w_.next[i], bytes, est, &bounds[i * kNeighbours]);
                for (int c = 0; c < kNeighbours; ++c) nodes[i * kNeighbours + c] = w_.next[i] * kNeighbours + c;
            }
            best_of(bounds.data(), nodes.data(), static_cast<int64_t>(bounds.size()), wanted, w_.next);
        }
        const uint8_t* records = b_.levels.back().records;
        const int64_t bytes = b_.levels.back().shape.group_bytes();
        for (int32_t g : w_.next) prefetch(records + g * bytes, bytes);
        for (int32_t g : w_.next) {
            leaf(g);
            w_.seeded[g / 64] |= uint64_t{1} << (g % 64);
        }
        look_closer();
        std::vector<Candidate>& all = w_.candidates;
        const size_t few = std::min<size_t>(k_, all.size());
        std::nth_element(all.begin(), all.begin() + few, all.end(), [](const Candidate& a, const Candidate& b) { return a.est > b.est; });
        for (size_t i = 0; i < few; ++i) ask(all[i]);
        all.erase(all.begin(), all.begin() + few);
        settle();
    }

    // The nodes of the coarsest level that reach the threshold, roughly from the highest bound down: a sort by bins.
    void open_roots(int64_t nodes) {
        float most = tau_;
        for (int64_t n = 0; n < nodes; ++n)
            if (w_.bounds[n] < kMostX) most = std::max(most, w_.bounds[n]);
        const float width = most > tau_ && tau_ > -kMostX ? (kBins - 1) / (most - tau_) : 0;
        const auto bin_of = [&](float bound) {  // beyond all, or where there is no threshold yet: the first bin
            const float at = (bound - tau_) * width;
            return kBins - 1 - (at < kBins - 1 ? static_cast<int>(at) : kBins - 1);
        };
        int32_t starts[kBins + 1] = {0};
        for (int64_t n = 0; n < nodes; ++n)
            if (w_.bounds[n] >= tau_) ++starts[bin_of(w_.bounds[n]) + 1];
        for (int b = 0; b < kBins; ++b) starts[b + 1] += starts[b];
        w_.open.resize(starts[kBins]);
        for (int64_t n = 0; n < nodes; ++n)
            if (w_.bounds[n] >= tau_) w_.open[starts[bin_of(w_.bounds[n])]++] = static_cast<int32_t>(n);
    }

    void here_is(size_t level, int64_t group, int64_t bytes, float* est, float* upper) {
        b_.looks->sixteen(b_.levels[level].records + group * bytes, b_.levels[level].shape, box_, kLowest, est, upper);
        answer_.bytes += static_cast<double>(bytes);
    }

    // The `wanted` nodes with the largest bounds that are there at all.
    void best_of(const float* bounds, const int32_t* names, int64_t count, int64_t wanted, std::vector<int32_t>& out) {
        float least = kLowest;
        if (count > wanted) {
            w_.sorted.resize(count);
            for (int64_t n = 0; n < count; ++n) w_.sorted[n] = bounds[n] >= kLowest ? bounds[n] : kLowest;
            std::nth_element(w_.sorted.begin(), w_.sorted.begin() + (wanted - 1), w_.sorted.end(), std::greater<float>());
            least = w_.sorted[wanted - 1];
        }
        out.clear();
        for (int64_t n = 0; n < count && static_cast<int64_t>(out.size()) < wanted; ++n)  // the first ones among equals
            if (bounds[n] > least) out.push_back(names == nullptr ? static_cast<int32_t>(n) : names[n]);
        for (int64_t n = 0; n < count && static_cast<int64_t>(out.size()) < wanted; ++n)
            if (bounds[n] == least) out.push_back(names == nullptr ? static_cast<int32_t>(n) : names[n]);
        std::sort(out.begin(), out.end());
    }

    // Opens `count` nodes of the level before `level`, whose bounds are those of the coarsest level where `rooted`.
    void descend(size_t level, const int32_t* nodes, int64_t count, bool rooted) {
        const BlockLevel& here = b_.levels[level];
        const int64_t bytes = here.shape.group_bytes();
        const bool last = level + 1 == b_.levels.size();
        float est[kNeighbours], upper[kNeighbours];
        int32_t children[kNeighbours];
        for (int64_t i = 0; i < count; ++i) {
            if (i + kAhead < count) prefetch(here.records + nodes[i + kAhead] * bytes, bytes);
            const int32_t node = nodes[i];
            if (rooted && !(w_.bounds[node] >= tau_)) continue;
            if (last) {
                if (w_.seeded[node / 64] >> (node % 64) & 1) continue;
                leaf(node);
                continue;
            }
            uint32_t open = b_.looks->sixteen(here.records + node * bytes, here.shape, box_, tau_, est, upper);
            answer_.bytes += static_cast<double>(bytes);
            int64_t found = 0;
            for (; open != 0; open &= open - 1) children[found++] = node * kNeighbours + __builtin_ctz(open);
            descend(level + 1, children, found, false);
        }
    }

    // Looks at the classes of a block. One whose estimate reaches the threshold is scored soon, which raises it.
    void leaf(int32_t group) {
        const BlockLevel& here = b_.levels.back();
        const int64_t bytes = here.shape.group_bytes();
        float est[kNeighbours], upper[kNeighbours];
        uint32_t open = b_.looks->sixteen(here.records + group * bytes, here.shape, class_, tau_, est, upper);
        ++opened_;
        answer_.bytes += static_cast<double>(bytes);
        for (; open != 0; open &= open - 1) {
            const int c = __builtin_ctz(open);
            const int32_t place = group * kNeighbours + c, id = b_.order[place];
            if (id < 0 || (mask_ != nullptr && mask_[id] == 0)) continue;
            if (b_.closer != nullptr) prefetch(b_.closer + place * closer_bytes_, closer_bytes_);
            w_.pending.push_back({place, est[c], upper[c]});
        }
        if (w_.pending.size() >= kPending) look_closer();
    }

    // Looks closer at the classes that are pending. One whose estimate reaches the threshold is scored soon, which raises it.
    void look_closer() {
        for (Candidate one : w_.pending) {
            if (!(one.upper >= tau_)) continue;
            if (b_.closer != nullptr) {
                one.upper = b_.looks->closer(b_.closer + one.place * closer_bytes_, b_.closer_shape, closer_, &one.est);
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
    }

    // The row of a class is wanted.
    void ask(const Candidate& of) {
        const int64_t id = b_.order[of.place];
        w_.ids.push_back(id);
        const int64_t bytes = b_.dim * (b_.kind == Kind::f32 ? 4 : 2);
        prefetch(static_cast<const uint8_t*>(b_.weight) + id * bytes, bytes);
    }

    // Scores the rows that were asked for; the threshold is the k-th best of all that were.
    void settle() {
        if (w_.ids.empty()) return;
        w_.z.resize(w_.ids.size());
        b_.kernels->dot_rows(b_.weight, b_.kind, b_.dim, w_.ids.data(), static_cast<int64_t>(w_.ids.size()), hidden_, w_.z.data());
        for (size_t i = 0; i < w_.ids.size(); ++i) {
            const double z = b_.bias == nullptr ? w_.z[i] : w_.z[i] + b_.bias[w_.ids[i]];
            w_.best.push_back({w_.ids[i], std::isfinite(z) ? z : kNone});
            std::push_heap(w_.best.begin(), w_.best.end(), better);
            if (static_cast<int64_t>(w_.best.size()) <= k_) continue;
            std::pop_heap(w_.best.begin(), w_.best.end(), better);
            w_.best.pop_back();
        }
        answer_.rows += static_cast<int64_t>(w_.ids.size());
        answer_.bytes += static_cast<double>(w_.ids.size()) * static_cast<double>(b_.dim * (b_.kind == Kind::f32 ? 4 : 2));
        w_.ids.clear();
        full_ = static_cast<int64_t>(w_.best.size()) >= k_;
        if (full_) tau_ = std::max(tau_, down(w_.best.front().z));
    }

    // Scores what is still open, best first. False where that is so much that a dense pass is cheaper.
    bool close() {
        std::vector<Candidate>& all = w_.candidates;
        look_closer();
        settle();
        size_t left = 0;
        for (const Candidate& one : all)
            if (one.upper >= tau_) all[left++] = one;
        all.resize(left);
        if (static_cast<double>(left) > std::max(64.0 + static_cast<double>(k_), b_.most * static_cast<double>(b_.vocab))) return false;
        std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.upper > b.upper; });
        for (const Candidate& one : all) {
            if (!(one.upper >= tau_)) break;
            ask(one);
            if (w_.ids.size() >= kTogether) settle();
        }
        settle();
        return true;
    }

    const Blocks& b_;
    const double* hidden_;
    int64_t k_;
    const uint8_t* mask_;
    Work& w_;
    Search& answer_;
    LookQuery box_{}, class_{}, closer_{};
    float tau_ = kLowest;
    const int64_t closer_bytes_ = b_.closer_shape.class_bytes();
    bool full_ = false;
    int64_t opened_ = 0;
};

}  // namespace

std::vector<Search> search(const Blocks& blocks, const double* hidden, int64_t count, int64_t k, const uint8_t* mask,
                           bool mask_per_row, int threads) {
    std::vector<Search> answers(count);
    std::atomic<int64_t> next{0};
    const auto work = [&](int) {
        static thread_local Work kept;
        for (int64_t q = next++; q < count; q = next++) {
            const uint8_t* here = mask == nullptr ? nullptr : mask + (mask_per_row ? q * blocks.vocab : 0);
            Run(blocks, hidden + q * blocks.dim, k, here, kept, answers[q]).go();
        }
    };
    if (count == 1 || threads == 1) work(0);
    else run_parallel(static_cast<int>(std::min<int64_t>(threads, count)), work);
    return answers;
}

}  // namespace headlong
