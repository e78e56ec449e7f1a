// One query's search: its threshold, the classes that may be among the best, and those that are so far.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "blocks/rotated_query.h"
#include "executor/true_order.h"
#include "runtime/prefetch.h"

namespace headlong {

constexpr float kLowest = -std::numeric_limits<float>::max();  // what pads a record is below: there is nothing beneath it
constexpr int kBins = 256;                                      // of bounds, from the highest down

// A class that may be among the best: where it is, and its upper end.
struct Candidate {
    int32_t place;
    float upper;
};

// A class with high noise, where that is, and its estimate.
struct LuckyPlace {
    int32_t place, which;  // which: of the lucky ones
    float est;
};

// Classes of open blocks that wait for a closer look.
struct Pending {
    std::vector<int32_t> places;
    std::vector<float> est, upper;
    size_t count = 0;

    // Where `more`, and sixteen behind them, may be written.
    OpenClasses end(size_t more = 0) {
        if (places.size() < count + more + kNeighbours) {
            const size_t room = 2 * (count + more + kNeighbours);
            places.resize(room), est.resize(room), upper.resize(room);
        }
        return from(count);
    }
    OpenClasses from(size_t first) { return {&places[first], &est[first], &upper[first]}; }
};

// What a query needs, kept from call to call.
struct Work {
    RotatedQuery rotated;
    std::vector<float> bounds;
    std::vector<float> below, scratch;  // bounds of nodes on the way to the first threshold, and what choosing among them takes
    std::vector<int32_t> next, chosen, room;  // room: only grows, so that nothing in it has to be set
    std::vector<uint8_t> bins;
    Pending pending;
    std::vector<Candidate> candidates;  // the first candidate_count
    size_t candidate_count = 0;
    std::vector<Scored> best;
    std::vector<int64_t> ids;
    std::vector<double> z;
    std::vector<uint64_t> seeded;
    std::vector<LuckyPlace> lucky;
};

class OneQuery {
  public:
    OneQuery(const Blocks& blocks, const double* hidden, int64_t k, LargestKey* keys, const uint8_t* mask, Work& work, SearchResult& answer)
        : b_(&blocks), hidden_(hidden), k_(k), keys_(keys), mask_(mask), w_(work), answer_(answer),
          // of several trees no row can be read again: logits are compared as they are, and `told_apart` says whether that will do
          several_(blocks.names != nullptr || blocks.next != nullptr),
          order_(*blocks.kernels, blocks.weight, blocks.kind, blocks.dim, blocks.bias, several_ ? 0 : blocks.most_norm, hidden),
          near_(*blocks.kernels, blocks.weight, blocks.kind, blocks.dim, blocks.bias, several_ ? blocks.most_norm : 0, hidden) {}

    // Rotates the query and looks for a first threshold. False where float32 cannot hold the query.
    bool begin();
    // Goes on in the next tree, with the threshold and the best that there are. False as above.
    bool enter(const Blocks& blocks);
    // Goes on with a search that another run began, whose threshold every run of it raises.
    void join(const OneQuery& first, float floor, std::atomic<float>& threshold);
    // With a threshold that every run of the search raises, or (null) alone.
    void share(std::atomic<float>* threshold) { shared_ = threshold; }

    // What another run of the search found.
    void add(int64_t opened);

    // The node of the coarsest level reaches the threshold.
    bool wants(int32_t node) const { return bounds_[node] >= tau_; }
    // The nodes of the coarsest level that reach the threshold in w_.next and a bin of each in w_.bins, 0 for the highest bounds.
    const std::vector<int32_t>& place() const;
    const std::vector<uint8_t>& bins() const { return w_.bins; }
    // Nodes of a record that reach the threshold, a bit for each.
    uint32_t open(const uint8_t* record, const RecordShape& shape, double bytes);
    bool is_seeded(int32_t group) const { return seeded_[group / 64] >> (group % 64) & 1; }
    // Looks at the classes of a block. One whose estimate reaches the threshold is scored soon, which raises it.
    void leaf(int32_t group, double bytes);
    // The same of the blocks [start, stop) of a list, as far as their bounds reach the threshold and they were not looked at.
    void leaves(const std::vector<int32_t>& groups, int64_t start, int64_t stop);
    // Scores what is still open, best first, and leaves the best in order. False where a full scan is cheaper.
    bool close();
    std::vector<Scored>& best() { return w_.best; }
    // Whether the k best are in order, and others behind them, whichever way their sums were rounded.
    bool told_apart() const;
    int64_t opened() const { return opened_; }
    float floor() const { return tau_; }

  private:
    bool draws() const { return keys_ != nullptr; }
    bool may_win(const Candidate& one) const;
    float threshold() const;
    bool is_there(int32_t row) const { return row >= 0 && (mask_ == nullptr || mask_[row] != 0); }
    void roots();
    void seed();
    void first_blocks();
    void first_rows();
    void look_at_lucky(size_t start, size_t stop);
    void choose(const float* x, int64_t n, int64_t wanted, std::vector<int32_t>& out);
    uint32_t sieve(uint32_t open, int32_t group) const;
    void look_closer();
    void ask(int32_t place);
    void sort_out(size_t first, size_t count);
    void settle();
    void keep(const Scored& one);
    void raise(float threshold);
    bool is_full() const { return draws() || static_cast<int64_t>(w_.best.size()) >= k_; }

    const Blocks* b_;
    const double* hidden_;
    int64_t k_;
    LargestKey* keys_;  // of its draws, or null: the k best are sought
    const uint8_t* mask_;
    Work& w_;
    SearchResult& answer_;
    bool several_;
    TrueOrder order_, near_;
    double dropped_ = -std::numeric_limits<double>::infinity();
    LookQuery box_{}, own_{}, closer_{};
    const float* bounds_ = nullptr;
    const uint64_t* seeded_ = nullptr;
    std::atomic<float>* shared_ = nullptr;
    float tau_ = kLowest;
    int64_t closer_bytes_ = b_->closer_shape.class_bytes();
    bool full_ = false;
    int64_t opened_ = 0;
};

}  // namespace headlong
