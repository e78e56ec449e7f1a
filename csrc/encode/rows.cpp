// Blocks of 64 rows, each by one thread from the layer to its codes: nothing of the rotated layer is ever held.
#include "encode/task.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "kernels/any_rows.h"
#include "runtime/pool.h"
#include "runtime/scratch.h"
#include "runtime/shared_work.h"

namespace headlong {
namespace {

float above(double x) {
    const float f = static_cast<float>(x);
    return static_cast<double>(f) < x ? std::nextafterf(f, __builtin_inff()) : f;
}

template <typename Take>
double lane_sum(int64_t n, const Take& take) {
    double lane[kSumLanes] = {};
    for (int64_t j = 0; j < n; ++j) lane[j % kSumLanes] += take(j);
    return folded(lane);
}

int64_t widened(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Panels of three vectors of columns, row after row, as `rotate` reads them; of the first `wanted` columns.
std::vector<float> packed(const float* back, int64_t dim, int64_t wanted, int64_t lanes) {
    const int64_t columns = widened(wanted, lanes);
    std::vector<float> out(static_cast<size_t>(columns * dim), 0.f);
    for (int64_t c = 0; c < columns; c += 3 * lanes) {
        const int64_t width = std::min(3 * lanes, columns - c), there = std::min(width, wanted - c);
        for (int64_t k = 0; k < dim; ++k) std::copy_n(back + k * dim + c, there, &out[c * dim + k * width]);
    }
    return out;
}

class Encoder {
  public:
    Encoder(const EncodeTask& task, const EncodeKernels& kernels) : task_(task), kernels_(kernels), padded_(widened(task.vocab, kBlock)) {
        columns_ = packed(task.back, task.dim, task.columns, kernels.lanes);
        stride_ = widened(task.dim, 16) + 16;  // rows that lie a power of two apart share the lines of a cache
    }

    void run(int threads) {
        Turns<int64_t> next;
        const int64_t blocks = padded_ / kBlock;
        run_parallel(static_cast<int>(std::min<int64_t>(threads, blocks)), [&](int) {
            Room room(*this);
            for (int64_t b = next++; b < blocks; b = next++) block(b, room);
        });
    }

  private:
    // What a thread works on: a block of rows, rotated.
    struct Room {
        explicit Room(const Encoder& of)
            : rows(kBlock * of.stride_), rotated(kBlock * of.stride_), work(of.stride_), codes(kBlock * of.task_.words * 4) {
            std::memset(rows.data(), 0, sizeof(float) * rows.size());
        }
        Scratch<float> rows, rotated, work;
        Scratch<uint8_t> codes;
    };

    void block(int64_t b, Room& room) const {
        const int64_t first = b * kBlock, count = std::min(kBlock, task_.vocab - first), dim = task_.dim;
        const int64_t item = row_bytes(task_.kind, dim);
        double base[kBlock] = {}, length[kBlock] = {};
        bool out[kBlock] = {};
        for (int64_t r = 0; r < count; ++r) {
            const char* row = static_cast<const char*>(task_.weight) + (first + r) * item;
            with_row(*kernels_for(kernels_.isa), row, task_.kind, dim, [&](const void* from, Kind kind) {
                kernels_.narrow(from, kind, task_.centre, task_.mean, dim, &room.rows[r * stride_], &base[r], &length[r]);
            });
            if (task_.bias != nullptr) base[r] += task_.bias[first + r];
            length[r] = std::sqrt(length[r]) * (1 + 1e-12);
        }
        kernels_.rotate(room.rows.data(), stride_, dim, columns_.data(), task_.columns, room.rotated.data(), stride_);
        for (int64_t r = 0; r < count; ++r) {
            float* row = &room.rotated[r * stride_];
            out[r] = !(kernels_.within(row, task_.columns, static_cast<float>(task_.largest)) && length[r] <= task_.largest_length &&
                       std::fabs(base[r]) <= task_.largest_base);
            if (out[r]) std::memset(row, 0, sizeof(float) * task_.columns), base[r] = length[r] = 0;
        }
        uint8_t* codes = room.codes.data();
        std::memset(codes, 128, kBlock * task_.words * 4);
        for (int64_t r = 0; r < count; ++r) {
            const int64_t id = first + r;
            task_.to.uncoded[id] = out[r];
            task_.to.base[id] = static_cast<float>(base[r]);
            task_.to.length[id] = above(length[r]);
            encode_row(id, &room.rotated[r * stride_], length[r], room.work.data(), codes + r * task_.words * 4);
        }
        uint8_t* to = task_.to.codes + b * task_.words * 256;
        for (int64_t w = 0; w < task_.words; ++w)
            for (int64_t r = 0; r < kBlock; ++r) std::memcpy(to + (w * kBlock + r) * 4, codes + (r * task_.words + w) * 4, 4);
    }

    void encode_row(int64_t id, float* row, double length, float* work, uint8_t* codes) const {
        const EncodeResult& to = task_.to;
        double squares = 0;
        int64_t coded = 0;
        for (size_t g = 0; g < task_.groups.size(); ++g) {
            const EncodeGroup& group = task_.groups[g];
            const int64_t n = group.stop - group.start, at = static_cast<int64_t>(g) * padded_ + id;
            float* left = row + group.start;
            float size = 0;
            if (group.place >= 0) kernels_.code(left, n, work, codes + group.place, &(to.scale + padded_ * coded++)[id], &size);
            // The product with the basis, and what is left being rounded where codes were taken from it.
            to.lost[at] = above(left_of(left, n));
            to.rounded[at] = above(group.unit * length + task_.underflown + 0x1p-21 * size);
            squares += static_cast<double>(size) * size;
        }
        to.size[id] = above(std::sqrt(squares) * (1 + 1e-12));
    }

    // ‖values‖, in float32 but where squares would underflow, and what rounding takes of it.
    double left_of(const float* values, int64_t n) const {
        double sum = kernels_.square(values, n);
        if (sum < 1e-20) sum = lane_sum(n, [&](int64_t j) { return static_cast<double>(values[j]) * values[j]; });
        return std::sqrt(sum) * (1 + static_cast<double>(n + 8) * 0x1p-24);
    }

    const EncodeTask& task_;
    const EncodeKernels& kernels_;
    const int64_t padded_;
    int64_t stride_ = 0;
    std::vector<float> columns_;
};

}  // namespace

void encode(const EncodeTask& task, int threads, const char* isa) {
    Encoder(task, *encoder_for(isa)).run(threads);
}

}  // namespace headlong
