#include "sampling/largest_key.h"

#include <algorithm>
#include <cmath>

#include "executor/executor.h"
#include "sampling/philox.h"

namespace headlong {
namespace {

constexpr double kLuckiest = 16;  // classes of a draw that show how high keys may be where logits differ little
constexpr double kSlack = 1e-12;  // of sums of a few numbers, as a share of the largest: thousands of their roundings

bool better(const Draw& a, const Draw& b) { return b.id < 0 || a.score > b.score || (a.score == b.score && a.id < b.id); }

}  // namespace

LargestKey::LargestKey(const SampleRule& rule, uint64_t row, double scale, double shift, uint64_t least)
    : rule_(rule), row_(row), scale_(scale), shift_(shift), noise_below_(gumbel_below(least)), draws_(rule.n) {}

bool LargestKey::wins(double f, uint32_t word, const Draw& best) const {
    return may_reach(f, word, best.score);
}

void LargestKey::take(int64_t id, double z) {
    if (!(z > -kInf)) return;
    const double f = linked(z);
    for (size_t i = 0; i < draws_.size(); ++i) {
        const auto draw = static_cast<uint32_t>(i);
        if (!wins(f, philox_word(rule_.seed, row_, draw, rule_.name(id)), draws_[i])) continue;
        const Draw one{id, z, f + gumbel(rule_.seed, row_, draw, rule_.name(id)), true};
        if (better(one, draws_[i])) draws_[i] = one;
    }
}

bool LargestKey::may_win(int64_t id, double upper) const {
    const double f = linked(upper);
    for (size_t i = 0; i < draws_.size(); ++i)
        if (wins(f, philox_word(rule_.seed, row_, static_cast<uint32_t>(i), rule_.name(id)), draws_[i])) return true;
    return false;
}

bool LargestKey::may_win(const Lucky& one, double upper) const { return wins(linked(upper), one.word, draws_[one.draw]); }

void LargestKey::luckiest_first(int64_t vocab) {
    const auto from = static_cast<uint64_t>(0x1p32 * (1 - std::min(1.0, kLuckiest / static_cast<double>(vocab))));
    const auto end = std::partition(lucky.begin(), lucky.end(), [&](const Lucky& one) { return one.word >= from; });
    luckiest = static_cast<size_t>(end - lucky.begin());
}

double LargestKey::least() const {
    double key = kInf;
    for (const Draw& draw : draws_) key = std::min(key, draw.score);
    const double slack = kSlack * (46 + std::fabs(key) + std::fabs(noise_below_) + std::fabs(shift_) / rule_.temperature);
    const double z = ((key - noise_below_ - slack) * rule_.temperature - shift_) / scale_;
    return std::isnan(z) ? -kInf : z;
}

void LargestKey::join(const LargestKey& other) {
    for (size_t i = 0; i < draws_.size(); ++i)
        if (other.draws_[i].id >= 0 && better(other.draws_[i], draws_[i])) draws_[i] = other.draws_[i];
}

}  // namespace headlong
