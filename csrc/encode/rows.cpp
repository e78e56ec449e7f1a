// Blocks of 64 rows, each by one thread from the layer to its codes: nothing of the rotated layer is ever held.
#include "encode/task.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>

#include "encode/grams.h"
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

// A 32-bit word holds 8 / bits quads, quad g in the bits from g * bits on of its four bytes.
void pack_bits(uint8_t* codes, int64_t n, int bits, uint8_t* to) {
    const int64_t groups = 8 / bits, words = plane_bytes(n, bits) / 4;
    std::fill(codes + n, codes + words * groups * 4, uint8_t{0});
    for (int64_t w = 0; w < words; ++w) {
        uint32_t word = 0, quad;
        for (int64_t g = 0; g < groups; ++g) {
            std::memcpy(&quad, codes + (w * groups + g) * 4, 4);
            word |= quad << (g * bits);
        }
        std::memcpy(to + w * 4, &word, 4);
    }
}

class Encoder {
  public:
    Encoder(const EncodeTask& task, const EncodeKernels& kernels) : task_(task), kernels_(kernels), padded_(widened(task.vocab, kBlock)) {
        for (const EncodeView& view : task.views) {
            words_ = std::max(words_, view.words);
            grams_.push_back(view.to.grams == nullptr ? nullptr : std::make_unique<Grams>(view));
            summed_ = summed_ || view.to.grams != nullptr;
        }
        columns_ = packed(task.back, task.dim, task.columns, kernels.lanes);
        stride_ = widened(task.dim, 16) + 16;  // rows that lie a power of two apart share the lines of a cache
    }

    void run(int threads) {
        Turns<int64_t> next;
        const int64_t blocks = padded_ / kBlock, at_once = summed_ ? kGramBlocks : 1;
        run_parallel(static_cast<int>(std::min<int64_t>(threads, (blocks + at_once - 1) / at_once)), [&](int) {
            Room room(*this);
            for (int64_t first = next.fetch_add(at_once); first < blocks; first = next.fetch_add(at_once)) {
                for (size_t v = 0; v < grams_.size(); ++v)
                    if (grams_[v]) room.sums[v] = grams_[v]->zeros();
                for (int64_t b = first; b < std::min(blocks, first + at_once); ++b) block(b, room);
                for (size_t v = 0; v < grams_.size(); ++v)
                    if (grams_[v]) grams_[v]->give(first / at_once, std::move(room.sums[v]));
            }
        });
        for (const auto& grams : grams_)
            if (grams) grams->mirror();
    }

  private:
    // What a thread works on: a block of rows, rotated, and what coarse planes leave of them where that is summed up.
    struct Room {
        explicit Room(const Encoder& of)
            : rows(kBlock * of.stride_), rotated(kBlock * of.stride_), work(3 * of.stride_), left(of.summed_ ? kBlock * of.stride_ + 64 : 0),
              codes(widened(of.task_.dim, 64) + 64), coarse(kBlock * of.words_ * 4), sums(of.grams_.size()) {
            std::memset(rows.data(), 0, sizeof(float) * rows.size());
            if (of.summed_) std::memset(left.data(), 0, sizeof(float) * left.size());
        }
        Scratch<float> rows, rotated, work, left;
        Scratch<uint8_t> codes, coarse;
        std::vector<Scratch<float>> sums;
    };

    void block(int64_t b, Room& room) const {
        const int64_t first = b * kBlock, count = std::min(kBlock, task_.vocab - first), dim = task_.dim;
        const int64_t item = dim * item_bytes(task_.kind);
        double base[kBlock] = {}, length[kBlock] = {};
        bool out[kBlock] = {};
        for (int64_t r = 0; r < count; ++r) {
            const char* row = static_cast<const char*>(task_.weight) + (first + r) * item;
            kernels_.narrow(row, task_.kind, task_.centre, task_.mean, dim, &room.rows[r * stride_], &base[r], &length[r]);
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
        for (size_t v = 0; v < task_.views.size(); ++v) {
            const EncodeView& view = task_.views[v];
            const bool last = v + 1 == task_.views.size();
            uint8_t* coarse = room.coarse.data();
            std::memset(coarse, 128, kBlock * view.words * 4);
            for (int64_t r = 0; r < count; ++r) {
                const int64_t id = first + r;
                float *row = &room.rotated[r * stride_], *own = &room.work[2 * stride_];
                if (!last) {  // codes are taken from it
                    std::copy_n(row, task_.columns, own);
                    row = own;
                }
                view.to.uncoded[id] = out[r];
                view.to.base[id] = static_cast<float>(base[r]);
                view.to.length[id] = above(length[r]);
                encode_row(view, id, row, length[r], room.work.data(), room.codes.data(), coarse + r * view.words * 4,
                           grams_[v] ? &room.left[r * stride_] : nullptr);
            }
            if (grams_[v]) {
                for (int64_t r = count; r < kBlock; ++r) std::memset(&room.left[r * stride_], 0, sizeof(float) * stride_);
                grams_[v]->add(kernels_, room.left.data(), stride_, room.sums[v].data());
            }
            uint8_t* to = view.to.codes + b * view.words * 256;
            for (int64_t w = 0; w < view.words; ++w)
                for (int64_t r = 0; r < kBlock; ++r) std::memcpy(to + (w * kBlock + r) * 4, coarse + (r * view.words + w) * 4, 4);
        }
    }

    void encode_row(const EncodeView& view, int64_t id, float* row, double length, float* work, uint8_t* codes, uint8_t* coarse,
                    float* kept) const {
        const EncodeResult& to = view.to;
        double more[kMostGroups] = {}, covered[kMostGroups] = {}, squares = 0;
        int64_t plane = 0;
        float scale = 0;
        for (size_t g = 0; g < view.coarse.size(); ++g) {
            const EncodeGroup& group = view.coarse[g];
            const int64_t n = group.stop - group.start, at = static_cast<int64_t>(g) * padded_ + id;
            float* left = row + group.start;
            double size = 0;
            for (const EncodePlane& p : group.planes) size += coded(left, n, p, work, codes, coarse, &(to.scale + padded_ * plane++)[id], &scale);
            // The product with the basis, and what is left being rounded wherever codes were taken from it.
            to.lost[at] = above(left_of(left, n));
            to.rounded[at] = above(group.unit * length + task_.underflown + 0x1p-21 * size);
            squares += size * size;
            if (group.cover >= 0) covered[group.cover] += size * size;
        }
        to.size[id] = above(std::sqrt(squares) * (1 + 1e-12));
        if (kept != nullptr) std::copy_n(row, task_.columns, kept);
        plane = 0;
        for (size_t f = 0; f < view.fine.size(); ++f) {
            const EncodeGroup& group = view.fine[f];
            const int64_t n = group.stop - group.start;
            scale = 0;
            for (const EncodePlane& p : group.planes)
                more[f] += coded(row + group.start, n, p, work, codes, to.rest + id * view.bytes, &(to.rest_scale + padded_ * plane++)[id], &scale);
            const double both = std::sqrt(covered[f]) + more[f];
            squares += both * both - covered[f];
        }
        to.rest_size[id] = above(std::sqrt(squares > 0 ? squares : 0) * (1 + 1e-12));
        for (size_t g = 0; g < view.coarse.size(); ++g) {
            const EncodeGroup& group = view.coarse[g];
            const int64_t at = static_cast<int64_t>(g) * padded_ + id;
            const double lost = group.cover < 0 ? to.lost[at] : left_of(row + group.start, group.stop - group.start) + 0x1p-21 * more[group.cover];
            to.rest_lost[at] = above(lost + to.rounded[at]);
        }
    }

    // One plane: its bytes go to `row`; returns ‖scale * code‖.
    double coded(float* left, int64_t n, const EncodePlane& p, float* work, uint8_t* codes, uint8_t* row, float* kept, float* scale) const {
        float size;
        uint8_t* to = p.bits == 8 ? row + p.place : codes;
        kernels_.plane(left, n, p.bits, p.step, *scale, work, to, scale, &size);
        if (p.bits < 8) pack_bits(codes, n, p.bits, row + p.place);
        *kept = *scale;
        return size;
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
    int64_t words_ = 0, stride_ = 0;
    bool summed_ = false;
    std::vector<float> columns_;
    std::vector<std::unique_ptr<Grams>> grams_;  // of each view that wants them
};

}  // namespace

void encode(const EncodeTask& task, int threads, const char* isa) {
    Encoder(task, *encoder_for(isa)).run(threads);
}

}  // namespace headlong
