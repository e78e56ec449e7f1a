// Prefixes of one query's shared order of coordinates: what the published search reads, class by class.
//
//   est_i = sum_j c_j w_ij,   var_i = sum_j d_j w_ij^2     over the first m coordinates,  c = x / q,  d = c^2 (1 - q)
//
// q, and with it every weight, changes with m, so a longer prefix is summed anew. Two things keep that from reading it anew:
// a group of 64 classes is taken through all its prefixes while its columns are in the cache, and a prefix that one class
// shows to be too short for all is passed over.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "adaptive/search.h"
#include "runtime/scratch.h"

namespace headlong {

constexpr int64_t kGroup = 64;    // classes that are read together: the bits of a mask
constexpr int64_t kLanes = 16;    // classes of one sum

using Arms = std::vector<uint64_t>;  // [groups]: a bit for every class that takes part

template <typename Work>
void each_arm(uint64_t mask, const Work& work) {
    for (; mask != 0; mask &= mask - 1) work(__builtin_ctzll(mask));
}

inline int64_t count_of(const Arms& arms) {
    int64_t count = 0;
    for (const uint64_t mask : arms) count += __builtin_popcountll(mask);
    return count;
}

inline int64_t following(int64_t m, int64_t most) { return std::min(most, std::max<int64_t>(16, (3 * m + 1) / 2)); }

// The largest variance and the largest estimate of some classes, and which ones have them (of a group: which group); the
// first among equals.
struct Ends {
    float variance = 0, estimate = 0;
    int64_t widest = -1, best = -1;

    void join(const Ends& other) {
        if (other.widest >= 0 && (widest < 0 || other.variance > variance)) variance = other.variance, widest = other.widest;
        if (other.best >= 0 && (best < 0 || other.estimate > estimate)) estimate = other.estimate, best = other.best;
    }
};

// Of every class the length of its prefix, its estimate and its variance.
struct State {
    float *est = nullptr, *var = nullptr;
    int32_t* pulls = nullptr;
    Ends ends;  // of the classes that were pulled last
};

// Which group of classes a thread is at, and how far it has read each of its blocks of 16.
struct Tile {
    int64_t group = -1, read[kGroup / kLanes] = {};
    int64_t next = -1, ahead = 0;  // the group after this one, and how many of its columns are on their way
    int64_t bytes = 0;
};

class Prefixes {
  public:
    Prefixes(const ColumnReader& reader, const double* x, uint64_t seed, uint64_t key, double warm, int threads);

    int64_t size() const { return static_cast<int64_t>(ids_.size()); }  // coordinates that can be drawn: D_eff
    int64_t most() const { return most_; }                             // those that the warm-up may read
    int64_t groups() const { return static_cast<int64_t>(ends_.size()); }
    double bytes() const { return static_cast<double>(bytes_.load()); }
    double base(int64_t i) const { return reader_.link_a * reader_.base[i] + reader_.link_b; }

    // The first m coordinates of all `arms`.
    void pull(State& state, const Arms& arms, int64_t m);
    // All of `arms` to the same prefix, from m coordinates on, until no variance is above the target; returns its length.
    int64_t together(State& state, const Arms& arms, int64_t m, double target, double multiplier, int64_t most);
    // The classes of one group, each until its variance is at most its limit [kGroup].
    void each(Tile& tile, State& state, int64_t group, uint64_t arms, const float* limits);
    // work(tile, group) for every group with a class in `arms`.
    void over_groups(const Arms& arms, const std::function<void(Tile&, int64_t)>& work);
    // The ends of `arms`, from those of their groups.
    Ends ends_of(const State& state, const Arms& arms) const;
    Ends& ends(int64_t group) { return ends_[group]; }

  private:
    struct Weights {
        int64_t m = 0;
        float *c = nullptr, *d = nullptr;
        std::once_flag once;
    };

    const char* at(int64_t group) const {
        return static_cast<const char*>(reader_.columns) + group * kGroup * reader_.rotated_dim * item_bytes(reader_.column_kind);
    }
    void order(const double* x, uint64_t seed, uint64_t key);
    void list_prefixes();
    const Weights& weights(int64_t m);
    void moments(Tile& tile, int64_t group, uint64_t arms, int64_t m, float* est, float* var);
    void fetch_ahead(Tile& tile, int64_t work) const;
    void take(State& state, int64_t group, uint64_t arms, int64_t m, const float* est, const float* var) const;

    const ColumnReader& reader_;
    const int threads_;
    int64_t most_ = 0;
    std::vector<int32_t> ids_;          // coordinates by descending key
    std::vector<double> x_, shares_, keys_;
    std::unique_ptr<Weights[]> prefixes_;
    size_t prefix_count_ = 0;
    Scratch<float> weights_;
    std::vector<Ends> ends_;            // of each group
    std::atomic<int64_t> bytes_{0};
};

}  // namespace headlong
