// A normaliser by learned draws (normaliser/by_learned_draws.cpp), step by step: what answers a query takes the steps once, what learns how many
// rows to spend takes them again and again (normaliser/try_learned_draws.cpp).
#pragma once

#include <limits>
#include <vector>

#include "executor/verbs.h"
#include "runtime/prefetch.h"
#include "runtime/scratch.h"

namespace headlong::lines {

// A class with a wide gap, or with what a closer look left of it.
struct Wide {
    int32_t id;
    float est, gap;
};

// What one query's draws go by. Gaps take the place of radii, which nobody wants behind them.
struct Line {
    Weighed w;  // its shift, and the hidden vector in float32 where that will do
    Scratch<float> own;
    float* gap = nullptr;
    Scratch<double> blocks;       // sums of the gaps of each kBlock classes
    std::vector<uint8_t> weighed;  // whether the gaps of these are there, one by one
    std::vector<double> closer;   // what closer looks added to the middles, chunk by chunk
    std::vector<float> edges;     // gaps from which each deeper level pays, and from which a class is scored
    double exact = 0, known = 0;  // terms of what was scored; and the middles of all others
    double aim = 0, step = 0;
    double likely = 0;            // rows that are read
    double lost = 0;              // by float32, of the logarithm
};

// The part of a thread: what is wide in the chunks that it took, and what was read.
struct Share {
    std::vector<Wide> wide;
    int64_t rows = 0;
    double bytes = 0;
};

// Reads rows some time after they were asked for, and adds up what they say, chunk by chunk: in the same order whichever threads do it.
// Where all logits are known, `every`, these are taken instead.
class Rows {
  public:
    Rows(const Executor& e, const double* hidden, double beta, const Weighed& w, std::vector<double>& sums, const double* every = nullptr)
        : e_(e), hidden_(hidden), beta_(beta), w_(w), sums_(sums), every_(every) {}

    // The error of the middle of a class, so many times.
    void take(int64_t id, float est, double times) {
        if (every_ == nullptr) {
            prefetch_row(e_.weight, static_cast<int64_t>(e_.row_bytes()), id);
            if (e_.bias != nullptr) __builtin_prefetch(e_.bias + id);
        }
        wanted_.push_back({id, 0});
        taken_.push_back({times, est});
        if (wanted_.size() >= read_ + kBehind + kGroup) read(kGroup);
    }
    void close() {
        if (read_ < wanted_.size()) read(wanted_.size() - read_);
    }
    int64_t count() const { return static_cast<int64_t>(wanted_.size()); }

  private:
    static constexpr size_t kGroup = 8, kBehind = 24;

    void read(size_t n) {
        some_.assign(wanted_.begin() + read_, wanted_.begin() + read_ + n);
        if (every_ == nullptr) score_near(e_, hidden_, w_, some_, 1);
        for (size_t i = 0; i < n; ++i) {
            const auto& [times, est] = taken_[read_ + i];
            const double z = every_ == nullptr ? some_[i].z : every_[some_[i].id];
            const double middle = std::exp(e_.linked(est) * beta_ - w_.shift), term = std::exp(e_.linked(z) * beta_ - w_.shift);
            sums_[some_[i].id / kChunk] += times * (term - middle);
        }
        read_ += n;
    }

    const Executor& e_;
    const double* hidden_;
    double beta_;
    const Weighed& w_;
    std::vector<double>& sums_;
    const double* every_;
    std::vector<Scored> wanted_, some_;
    std::vector<std::pair<double, float>> taken_;
    size_t read_ = 0;
};

inline int64_t chunks_of(const Executor& e) { return (e.padded + kChunk - 1) / kChunk; }

// The step, and what is taken out of the look for it.
Line start_line(const Executor& e, Look& look, int q, const Question& question, double spend, const std::vector<Scored>& scored);
// The sums of a chunk's gaps; what is wide in it, and closer looks at that.
void weigh_chunk(const Executor& e, const Look& look, int q, double beta, int64_t c, Line& line, std::vector<Wide>& wide);
void look_closer(const Executor& e, const Look& look, int q, double beta, Line& line, size_t level, std::vector<Wide>& wide, double* bytes);
// The classes of a chunk on which points fall, and those that were wide.
void draw_chunk(const Executor& e, const Look& look, int q, double beta, Line& line, int64_t c, uint64_t key, Rows& rows);
void draw_wide(const Line& line, const std::vector<Wide>& wide, uint64_t key, Rows& rows);
// The logarithm of it all.
double estimate(const Executor& e, const Look& look, const Line& line, const std::vector<Share>& all, const std::vector<double>& sums, Answer& answer);

}  // namespace headlong::lines
