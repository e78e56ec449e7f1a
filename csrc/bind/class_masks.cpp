// The bytes of a class mask from a list of ids, checked on the way: one pass, at the cost of reading the list.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "bind/arguments.h"
#include "bind/without_gil.h"

namespace headlong {
namespace {

constexpr int kRun = 64;  // so many neighbours in order, as in a list of almost all classes, are marked at once

// How many of the kRun bytes, each 0 or 1, are 1.
inline int64_t ones(const uint8_t* bytes) {
    uint64_t words[kRun / 8], sum = 0;
    std::memcpy(words, bytes, kRun);
    for (const uint64_t word : words) sum += word;  // eight sums side by side, none above kRun
    return static_cast<int64_t>((sum * 0x0101010101010101u) >> 56);
}

// marked[id] = at for the `m` ids, the rest 1 - at; -1 is no id. Returns how many bytes are 1; -1 where an id lies elsewhere,
// and the bytes then mean nothing.
template <typename T>
int64_t mark_row(uint8_t* marked, int64_t vocab, const T* ids, int64_t m, uint8_t at) {
    using Bare = std::make_unsigned_t<T>;
    const Bare end = static_cast<Bare>(vocab);
    int64_t fresh = 0;  // ids that came for the first time
    std::memset(marked, 1 - at, vocab);
    for (int64_t start = 0; start < m; start += kRun) {
        const T* some = ids + start;
        const int64_t count = std::min<int64_t>(kRun, m - start);
        const Bare first = static_cast<Bare>(some[0]), last = static_cast<Bare>(some[count - 1]);
        if (first < end && last < end && last - first == kRun - 1 && count == kRun) {
            Bare differs = 0;
            for (int i = 0; i < kRun; ++i) differs |= static_cast<Bare>(some[i]) ^ static_cast<Bare>(first + i);
            if (differs == 0) {
                const int64_t there = ones(marked + first);
                fresh += at == 1 ? kRun - there : there;
                std::memset(marked + first, at, kRun);
                continue;
            }
        }
        for (int64_t i = 0; i < count; ++i) {
            const Bare id = static_cast<Bare>(some[i]);
            if (id < end) {
                fresh += marked[id] != at;
                marked[id] = at;
            } else if (id != static_cast<Bare>(-1)) {
                return -1;
            }
        }
    }
    return at == 1 ? fresh : vocab - fresh;
}

template <typename T>
using IdsOf = nb::ndarray<const T, nb::numpy, nb::c_contig, nb::device::cpu>;
using Marked = nb::ndarray<uint8_t, nb::numpy, nb::c_contig, nb::device::cpu>;

// The most bytes that are 1 in a row, or -1.
template <typename T>
int64_t mark(Marked marked, IdsOf<T> ids, int at) {
    check(marked.ndim() == 2 && ids.ndim() == 2 && marked.shape(0) == ids.shape(0), "marked [rows, vocab], ids [rows, m]");
    check(at == 0 || at == 1, "at is 0 or 1");
    const int64_t vocab = static_cast<int64_t>(marked.shape(1)), m = static_cast<int64_t>(ids.shape(1));
    check(vocab < int64_t{1} << 31, "a layer has fewer than 2^31 classes");
    return unlocked([&] {
        int64_t most = 0;
        for (int64_t row = 0; row < static_cast<int64_t>(marked.shape(0)); ++row) {
            const int64_t left = mark_row(marked.data() + row * vocab, vocab, ids.data() + row * m, m, static_cast<uint8_t>(at));
            if (left < 0) return left;
            most = std::max(most, left);
        }
        return most;
    });
}

}  // namespace

void bind_marks(nb::module_& m) {
    m.def("mark", &mark<int64_t>, nb::arg("marked").noconvert(), nb::arg("ids").noconvert(), nb::arg("at"));
    m.def("mark", &mark<int32_t>, nb::arg("marked").noconvert(), nb::arg("ids").noconvert(), nb::arg("at"));
}

}  // namespace headlong
