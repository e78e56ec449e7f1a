// Recursive cuts across principal directions, found by power iteration on some of the rows.
#include "blocks/class_order.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "runtime/pool.h"

namespace headlong {
namespace {

constexpr int64_t kLeast = 16;      // rows that stay together
constexpr int64_t kSample = 512;      // rows that tell a direction
constexpr int kRounds = 6;          // of the power iteration
constexpr int64_t kShared = 4096;   // pieces up to this size are cut by one thread each

using Piece = std::pair<int64_t, int64_t>;

// Sums of four lanes are added up in an order of their own, so that compilers need not keep that of the coordinates, and the
// cuts are the same on every machine.
constexpr int64_t kLanes = 4;
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

inline Lanes get(const float* p) {
    Lanes v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline void put(float* p, Lanes v) { std::memcpy(p, &v, sizeof v); }
inline float sum_of(Lanes v) { return (v[0] + v[2]) + (v[1] + v[3]); }

class Cutter {
  public:
    Cutter(const float* features, int64_t width, int32_t* order)
        : features_(features), width_(width), wide_((width + kLanes - 1) / kLanes * kLanes), order_(order), direction_(wide_), middle_(width), next_(wide_) {}

    // Cuts the piece; its first part holds about half of it, in whole powers of sixteen.
    int64_t cut(Piece piece) {
        const int64_t count = piece.second - piece.first;
        find_direction(piece);
        keyed_.resize(count);
        for (int64_t i = 0; i < count; ++i) {
            const float* row = features_ + static_cast<int64_t>(order_[piece.first + i]) * width_;
            Lanes sums = {};
            int64_t j = 0;
            for (; j + kLanes <= width_; j += kLanes) sums += get(row + j) * get(&direction_[j]);
            float sum = sum_of(sums);
            for (; j < width_; ++j) sum += row[j] * direction_[j];
            keyed_[i] = {sum, order_[piece.first + i]};
        }
        int64_t unit = kLeast;
        while (unit * kLeast < count) unit *= kLeast;
        const int64_t half = std::max(unit, (count / unit + 1) / 2 * unit);
        std::nth_element(keyed_.begin(), keyed_.begin() + half, keyed_.end());
        for (int64_t i = 0; i < count; ++i) order_[piece.first + i] = keyed_[i].second;
        return piece.first + half;
    }

  private:
    // The rows of a piece, or some of them, from their middle, each with zeros behind it; `next_`: the squares of every coordinate.
    void take_rows(Piece piece) {
        const int64_t step = std::max<int64_t>(1, (piece.second - piece.first) / kSample);
        const int64_t seen = (piece.second - piece.first + step - 1) / step;
        rows_.assign(seen * wide_, 0.f);
        std::fill(middle_.begin(), middle_.end(), 0.f);
        for (int64_t i = 0; i < seen; ++i) {
            const float* row = features_ + static_cast<int64_t>(order_[piece.first + i * step]) * width_;
            std::copy_n(row, width_, &rows_[i * wide_]);
            for (int64_t j = 0; j < width_; ++j) middle_[j] += row[j];
        }
        std::fill(next_.begin(), next_.end(), 0.f);
        for (float& value : middle_) value /= static_cast<float>(seen);
        for (int64_t i = 0; i < seen; ++i)
            for (int64_t j = 0; j < width_; ++j) {
                float& value = rows_[i * wide_ + j];
                value -= middle_[j];
                next_[j] += value * value;
            }
    }

    void find_direction(Piece piece) {
        take_rows(piece);
        // From the coordinate that varies most, and a little of all others.
        const int64_t most = std::max_element(next_.begin(), next_.begin() + width_) - next_.begin();
        std::fill(direction_.begin(), direction_.end(), 0.f);
        std::fill_n(direction_.begin(), width_, 0.1f);
        direction_[most] = 1;
        for (int round = 0; round < kRounds; ++round) {
            const int64_t seen = static_cast<int64_t>(rows_.size()) / wide_;
            along_.resize(seen);
            for (int64_t i = 0; i < seen; ++i) {
                Lanes sums = {};
                for (int64_t j = 0; j < wide_; j += kLanes) sums += get(&rows_[i * wide_ + j]) * get(&direction_[j]);
                along_[i] = sum_of(sums);
            }
            for (int64_t j = 0; j < wide_; j += kLanes) {
                Lanes sums[4] = {};  // an addition does not wait for the one before
                int64_t i = 0;
                for (; i + 4 <= seen; i += 4)
                    for (int64_t s = 0; s < 4; ++s) sums[s] += get(&rows_[(i + s) * wide_ + j]) * along_[i + s];
                for (; i < seen; ++i) sums[0] += get(&rows_[i * wide_ + j]) * along_[i];
                put(&next_[j], (sums[0] + sums[1]) + (sums[2] + sums[3]));
            }
            float size = 0;
            for (float value : next_) size = std::max(size, std::fabs(value));
            if (!(size > 0) || !std::isfinite(size)) return;  // all alike: any cut will do
            for (int64_t j = 0; j < width_; ++j) direction_[j] = next_[j] / size;
        }
    }

    const float* features_;
    int64_t width_, wide_;
    int32_t* order_;
    std::vector<float> direction_, middle_, next_, rows_, along_;
    std::vector<std::pair<float, int32_t>> keyed_;
};

// Cuts pieces down to `least` or to sixteen; those that are left come back.
std::vector<Piece> cut_down(Cutter& cutter, std::vector<Piece> pieces, int64_t least) {
    std::vector<Piece> left;
    while (!pieces.empty()) {
        const Piece piece = pieces.back();
        pieces.pop_back();
        if (piece.second - piece.first <= std::max(least, kLeast)) {
            left.push_back(piece);
            continue;
        }
        const int64_t at = cutter.cut(piece);
        pieces.push_back({piece.first, at});
        pieces.push_back({at, piece.second});
    }
    return left;
}

}  // namespace

void neighbours(const float* features, int64_t count, int64_t width, int threads, int32_t* order) {
    for (int64_t i = 0; i < count; ++i) order[i] = static_cast<int32_t>(i);
    Cutter first(features, width, order);
    const std::vector<Piece> pieces = cut_down(first, {{0, count}}, kShared);
    std::atomic<size_t> next{0};
    run_parallel(threads, [&](int) {
        Cutter own(features, width, order);
        for (size_t p = next++; p < pieces.size(); p = next++) cut_down(own, {pieces[p]}, kLeast);
    });
}

}  // namespace headlong
