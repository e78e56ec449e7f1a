// The k best of values that come one after the other.
#pragma once

#include <algorithm>
#include <vector>

namespace headlong {

// A few are a heap, the worst in front. More would take it long: those are kept as they come, and cut to the k best now and then.
template <typename T, typename Better>
class Largest {
  public:
    explicit Largest(Better better = {}) : better_(better) {}
    // Whether k have come, so that others must be better than worst().
    bool full() const { return full_; }
    // The k-th best, of what was there at the last cut.
    const T& worst() const { return kept_[worst_]; }
    // The k best of all that came, in no order, and maybe more.
    const std::vector<T>& kept() const { return kept_; }

    // To be called for what is better than worst(), where there is one.
    void add(const T& value, size_t k) {
        if (k > kHeap) return kept_.push_back(value);
        if (full_) {
            std::pop_heap(kept_.begin(), kept_.end(), better_);
            kept_.back() = value;
        } else {
            kept_.push_back(value);
        }
        std::push_heap(kept_.begin(), kept_.end(), better_);
        full_ = kept_.size() == k;
    }
    // To be called after every few: cuts once half as many more than k are there.
    void cut(size_t k) {
        if (k <= kHeap || kept_.size() < k || (full_ && kept_.size() < k + k / 2)) return;
        worst_ = k - 1;
        std::nth_element(kept_.begin(), kept_.begin() + static_cast<int64_t>(worst_), kept_.end(), better_);
        kept_.resize(k);
        full_ = true;
    }

  private:
    static constexpr size_t kHeap = 64;  // as many as filters ask for at first

    Better better_;
    std::vector<T> kept_;
    size_t worst_ = 0;
    bool full_ = false;
};

}  // namespace headlong
