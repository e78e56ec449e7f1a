#include "blocks/rotated_query.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace headlong {
namespace {

constexpr int64_t kStrip = 32;  // columns of a rotation that lie together; native/readers.py lays them out

// Four sums side by side: one alone waits for every addition.
template <typename Get>
double sum_of(int64_t start, int64_t stop, const Get& get) {
    double sums[4] = {0, 0, 0, 0};
    int64_t j = start;
    for (; j + 4 <= stop; j += 4)
        for (int s = 0; s < 4; ++s) sums[s] += get(j + s);
    for (; j < stop; ++j) sums[0] += get(j);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

double norm(const double* x, int64_t start, int64_t stop) {
    return std::sqrt(sum_of(start, stop, [&](int64_t j) { return x[j] * x[j]; }));
}

int64_t strip_at(int64_t at, int64_t width) { return width - at < 2 * kStrip ? width - at : kStrip; }

}  // namespace

float up(double x) {
    const float y = static_cast<float>(x);
    return static_cast<double>(y) < x ? std::nextafter(y, std::numeric_limits<float>::infinity()) : y;
}

bool RotatedQuery::take(const Blocks& b, const double* hidden) {
    const int64_t dim = b.dim, width = b.width;
    shifted_.resize(dim);
    rotated_.resize(width);
    for (int64_t j = 0; j < dim; ++j) shifted_[j] = hidden[j] - b.mean[j];
    const double length = norm(shifted_.data(), 0, dim) * (1 + 1e-12);
    const double add = b.centre == nullptr ? 0 : sum_of(0, dim, [&](int64_t j) { return hidden[j] * b.centre[j]; });
    const auto* strip = static_cast<const uint8_t*>(b.leading);
    for (int64_t at = 0, n = 0; at < width; at += n) {
        n = strip_at(at, width);
        b.kernels->rotate(strip, b.rotation_kind, dim, n, shifted_.data(), &rotated_[at]);
        strip += dim * n * item_bytes(b.rotation_kind);
    }
    x_.assign(width + kNeighbours, 0.f);
    signs_.resize(2 * b.boxed);
    most_ = 0;
    for (int64_t j = 0; j < width; ++j) {
        x_[j] = static_cast<float>(rotated_[j]);
        most_ = std::max(most_, std::fabs(x_[j]));
        if (j >= b.boxed) continue;
        signs_[j] = std::max(x_[j], 0.f);
        signs_[b.boxed + j] = std::min(x_[j], 0.f);
    }
    length_ = length;
    take_rest(b);
    const float lengths = add_lengths(b);
    const float slack = up(std::fabs(add) * 0x1p-20 + 0x1p-100);
    box = {signs_.data(), lengths_.data(), static_cast<float>(add), slack};
    own = {x_.data(), lengths_.data(), static_cast<float>(add), slack};
    closer = {x_.data() + b.boxed, closer_lengths_.data(), 0, slack};
    bytes = static_cast<double>(dim * width * (b.rest == nullptr ? 1 : 2)) * item_bytes(b.rotation_kind) +
            static_cast<double>(dim * b.rest_width);
    return holds(b, lengths);
}

bool RotatedQuery::take_again(const Blocks& b) { return holds(b, add_lengths(b)); }

bool RotatedQuery::holds(const Blocks& b, float lengths) const {
    const double most = std::max(most_, lengths), add = std::fabs(own.add);
    return most <= kMostX && add <= kMostX && most * b.gain + b.largest + add <= kMostBound;
}

// The lengths of all segments and the two that join them; the largest is returned.
float RotatedQuery::add_lengths(const Blocks& b) {
    const double* x = rotated_.data();
    const double halves[4] = {norm(x, 0, b.boxed), norm(x, b.boxed, b.width), 1, length_};
    lengths_.clear();
    closer_lengths_.clear();
    for (size_t s = 0, behind = 0; s + 1 < b.edges.size(); ++s) {
        const double exact = b.edges[s] < b.width ? norm(x, b.edges[s], b.edges[s + 1]) : rest_lengths_[behind++];
        const float size = up(exact * (1 + 0x1p-18));
        lengths_.push_back(size);
        if (static_cast<int64_t>(s) >= b.closer_from) closer_lengths_.push_back(size);
    }
    double shared = 0, closest = 0;
    for (int h = 0; h < 4; ++h) {
        shared += b.shared[h] * halves[h];
        closest += b.closer_shared[h] * halves[h];
    }
    lengths_.push_back(up(shared * (1 + 0x1p-18)));
    closer_lengths_.push_back(up(closest * (1 + 0x1p-18)));
    float most = 0;
    for (float size : lengths_) most = std::max(most, size);
    for (float size : closer_lengths_) most = std::max(most, size);
    return most;
}

// No less than the lengths of the segments behind `width`: of what x back leaves of the query, by codes of the rotation, and what
// that is off. (What x back gives has next to no part in them, and is most of the query.)
void RotatedQuery::take_rest(const Blocks& b) {
    rest_lengths_.clear();
    if (b.rest == nullptr) return;
    const int64_t dim = b.dim, width = b.width;
    const double* x = rotated_.data();
    left_.resize(dim);
    rest_.resize(b.rest_width);
    given_.resize(dim);
    b.kernels->rotate(b.back, b.rotation_kind, width, dim, x, given_.data());
    double square = 0;
    for (int64_t j = 0; j < dim; ++j) {
        left_[j] = static_cast<float>(shifted_[j] - given_[j]);
        square += static_cast<double>(left_[j]) * left_[j];
    }
    b.looks->spread(b.rest, dim, b.rest_width, left_.data(), rest_.data());
    const double left = std::sqrt(square), size = norm(x, 0, width);
    const double* lost = b.rest_lost.data();
    for (size_t s = 0; s + 1 < b.edges.size(); ++s) {
        if (b.edges[s] < width) continue;
        double sum = 0;
        for (int64_t j = b.edges[s] - width; j < b.edges[s + 1] - width; ++j) {
            const double one = static_cast<double>(rest_[j]) * b.rest_scale[j];
            sum += one * one;
        }
        rest_lengths_.push_back(std::sqrt(sum) * (1 + 0x1p-20) + lost[0] * left + lost[1] * length_ + lost[2] * size);
        lost += 3;
    }
}

}  // namespace headlong
