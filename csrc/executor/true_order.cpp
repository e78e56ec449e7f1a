#include "executor/true_order.h"

#include <array>
#include <atomic>
#include <cstring>

#include "kernels/any_rows.h"
#include "runtime/scratch.h"

namespace headlong {
namespace {

// A sum of doubles without rounding: a whole number of 2^-1074, in words of 32 bits with room for carries.
class ExactSum {
  public:
    void add(double x) {
        uint64_t bits;
        std::memcpy(&bits, &x, 8);
        const int64_t exponent = static_cast<int64_t>(bits >> 52 & 0x7FF), place = exponent == 0 ? 0 : exponent - 1;
        const uint64_t mantissa = (bits & ((uint64_t{1} << 52) - 1)) | static_cast<uint64_t>(exponent != 0) << 52;
        const uint64_t low = (mantissa & kWord) << (place & 31), high = (mantissa >> 32) << (place & 31);
        const int64_t sign = bits >> 63 ? -1 : 1;
        int64_t* word = &words_[place >> 5];
        word[0] += sign * static_cast<int64_t>(low & kWord);
        word[1] += sign * static_cast<int64_t>((low >> 32) + (high & kWord));
        word[2] += sign * static_cast<int64_t>(high >> 32);
    }

    // Rounded once, to the nearest, ties to even.
    double value() {
        carry();
        const bool negative = words_.back() < 0;
        if (negative) {
            for (int64_t& word : words_) word = -word;
            carry();
        }
        size_t top = words_.size() - 1;
        while (top > 2 && words_[top] == 0) --top;
        uint64_t rest = 0;  // whatever is below the first words decides only whether they are all
        for (size_t i = 0; i + 2 < top; ++i) rest |= static_cast<uint64_t>(words_[i]);
        uint64_t high = static_cast<uint64_t>(words_[top]) << 32 | static_cast<uint64_t>(words_[top - 1]), low = static_cast<uint64_t>(words_[top - 2]);
        int64_t place = 32 * static_cast<int64_t>(top - 1) - 1074;
        if (high == 0) return std::ldexp(static_cast<double>(low), -1074) * (negative ? -1 : 1);
        for (; high >> 62 == 0; --place) high = high << 1 | (low >> 31 & 1), low = low << 1 & kWord;
        for (; high >> 62 != 1; ++place) rest |= high & 1, high >>= 1;
        const double size = std::ldexp(static_cast<double>(static_cast<int64_t>(high | static_cast<uint64_t>((low | rest) != 0))), static_cast<int>(place));
        return negative ? -size : size;
    }

  private:
    static constexpr uint64_t kWord = 0xFFFFFFFF;

    // Every word but the last, which has the sign, becomes one of 32 bits.
    void carry() {
        for (size_t i = 0; i + 1 < words_.size(); ++i) {
            const int64_t over = words_[i] >> 32;
            words_[i] -= over * (int64_t{1} << 32);
            words_[i + 1] += over;
        }
    }

    std::array<int64_t, 68> words_{};
};

struct Remembered {
    uint64_t key = 0;
    int64_t id = -1;
    double z = 0;
};
constexpr uint64_t kRemembered = 4096;

}  // namespace

TrueOrder::TrueOrder(const Kernels& kernels, const void* weight, Kind kind, int64_t dim, const float* bias, double most_norm, const double* hidden)
    : kernels_(&kernels), weight_(weight), kind_(kind), dim_(dim), bias_(bias), hidden_(hidden) {
    static std::atomic<uint64_t> queries{1};
    double square = 0;
    for (int64_t i = 0; i < dim; ++i) square += hidden[i] * hidden[i];
    most_off_ = static_cast<double>(dim + 8) * 0x1p-51 * most_norm * std::sqrt(square);
    bias_off_ = bias != nullptr && most_off_ > 0 ? 0x1p-51 : 0;
    key_ = queries++;
}

double TrueOrder::exact(int64_t id) const {
    thread_local std::vector<Remembered> known(kRemembered);
    Remembered& place = known[(static_cast<uint64_t>(id) + 61 * key_) % kRemembered];  // queries of a batch come in turn
    if (place.key == key_ && place.id == id) return place.z;
    Scratch<double> row(dim_);
    with_row(*kernels_, row_of(id), kind_, dim_, [&](const void* numbers, Kind kind) { kernels_->widen(numbers, kind, dim_, row.data()); });
    ExactSum sum;
    if (bias_ != nullptr) sum.add(bias_[id]);
    for (int64_t i = 0; i < dim_; ++i) {
        uint64_t bits;
        std::memcpy(&bits, &hidden_[i], 8);
        bits &= ~((uint64_t{1} << 27) - 1);
        double high;  // a factor of 26 bits, and one of 27: times 24 bits of a row, products are exact
        std::memcpy(&high, &bits, 8);
        sum.add(row.data()[i] * high);
        if (high != hidden_[i]) sum.add(row.data()[i] * (hidden_[i] - high));
    }
    place = {key_, id, sum.value()};
    return place.z;
}

}  // namespace headlong
