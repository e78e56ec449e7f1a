// E^T E of each group of a view, E what its coarse planes leave of all rows: float32 over kGramBlocks blocks of rows, float64 over
// those, which are added up in their order whichever thread comes first, so that the sums are the same for any number of threads.
#pragma once

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "encode/task.h"
#include "runtime/scratch.h"

namespace headlong {

constexpr int64_t kGramBlocks = 8;  // joint_error.py counts the roundings of so many blocks

class Grams {
  public:
    // A group's sums in float32: whole tiles of 8 rows and 48 columns, whatever the kernel's are.
    struct Place {
        int64_t start, n, stride, at, to;
    };

    explicit Grams(const EncodeView& view) : out_(view.to.grams) {
        for (const EncodeGroup& group : view.coarse) {
            const int64_t n = group.stop - group.start, stride = (n + 47) / 48 * 48;
            places_.push_back({group.start, n, stride, size_, total_});
            size_ += (n + 7) / 8 * 8 * stride;
            total_ += n * n;
        }
        std::fill_n(out_, total_, 0.0);
    }

    Scratch<float> zeros() const {
        Scratch<float> sums(size_);
        std::fill_n(sums.data(), size_, 0.f);
        return sums;
    }

    // One block of rows.
    void add(const EncodeKernels& kernels, const float* left, int64_t stride, float* sums) const {
        for (const Place& p : places_) kernels.gram(left + p.start, stride, p.n, sums + p.at, p.stride);
    }

    // The sums of a run of blocks, the `run`-th; those of later runs wait until it is their turn.
    void give(int64_t run, Scratch<float> sums) {
        const std::lock_guard<std::mutex> lock(mutex_);
        waiting_.emplace(run, std::move(sums));
        for (auto next = waiting_.find(turn_); next != waiting_.end(); next = waiting_.find(turn_)) {
            take(next->second.data());
            waiting_.erase(next);
            ++turn_;
        }
    }

    // When all runs were given: the lower halves.
    void mirror() const {
        for (const Place& p : places_)
            for (int64_t i = 0; i < p.n; ++i)
                for (int64_t j = 0; j < i; ++j) out_[p.to + i * p.n + j] = out_[p.to + j * p.n + i];
    }

  private:
    void take(const float* sums) {
        for (const Place& p : places_)
            for (int64_t i = 0; i < p.n; ++i) {
                double* to = out_ + p.to + i * p.n;
                const float* from = sums + p.at + i * p.stride;
                for (int64_t j = i; j < p.n; ++j) to[j] += static_cast<double>(from[j]);
            }
    }

    double* out_;
    std::vector<Place> places_;
    int64_t size_ = 0, total_ = 0, turn_ = 0;
    std::map<int64_t, Scratch<float>> waiting_;
    std::mutex mutex_;
};

}  // namespace headlong
