// The bytes of a class mask from a list of ids, checked on the way: one pass, at the cost of reading the list.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "bind/arguments.h"
#include "bind/without_gil.h"

namespace headlong {
namespace {

constexpr int kRun = 64;  // so many neighbours in order, as in a list of almost all classes, are marked at once

// marked[id] = at for the `m` ids, the rest 1 - at; -1 is no id. False where an id lies elsewhere, and the bytes then mean nothing.
template <typename T>
bool mark_row(uint8_t* marked, int64_t vocab, const T* ids, int64_t m, uint8_t at) {
    using Bare = std::make_unsigned_t<T>;
    const Bare end = static_cast<Bare>(vocab);
    std::memset(marked, 1 - at, vocab);
    for (int64_t start = 0; start < m; start += kRun) {
        const T* some = ids + start;
        const int64_t count = std::min<int64_t>(kRun, m - start);
        const Bare first = static_cast<Bare>(some[0]), last = static_cast<Bare>(some[count - 1]);
        if (first < end && last < end && last - first == kRun - 1 && count == kRun) {
            Bare differs = 0;
            for (int i = 0; i < kRun; ++i) differs |= static_cast<Bare>(some[i]) ^ static_cast<Bare>(first + i);
            if (differs == 0) {
                std::memset(marked + first, at, kRun);
                continue;
            }
        }
        for (int64_t i = 0; i < count; ++i) {
            const Bare id = static_cast<Bare>(some[i]);
            if (id < end) marked[id] = at;
            else if (id != static_cast<Bare>(-1)) return false;
        }
    }
    return true;
}

template <typename T>
using IdsOf = nb::ndarray<const T, nb::numpy, nb::c_contig, nb::device::cpu>;
using Marked = nb::ndarray<uint8_t, nb::numpy, nb::c_contig, nb::device::cpu>;

// Whether all rows of ids could be marked.
template <typename T>
bool mark(Marked marked, IdsOf<T> ids, int at) {
    check(marked.ndim() == 2 && ids.ndim() == 2 && marked.shape(0) == ids.shape(0), "marked [rows, vocab], ids [rows, m]");
    check(at == 0 || at == 1, "at is 0 or 1");
    const int64_t vocab = static_cast<int64_t>(marked.shape(1)), m = static_cast<int64_t>(ids.shape(1));
    check(vocab < int64_t{1} << 31, "a layer has fewer than 2^31 classes");
    return unlocked([&] {
        for (int64_t row = 0; row < static_cast<int64_t>(marked.shape(0)); ++row)
            if (!mark_row(marked.data() + row * vocab, vocab, ids.data() + row * m, m, static_cast<uint8_t>(at))) return false;
        return true;
    });
}

}  // namespace

void bind_marks(nb::module_& m) {
    m.def("mark", &mark<int64_t>, nb::arg("marked").noconvert(), nb::arg("ids").noconvert(), nb::arg("at"));
    m.def("mark", &mark<int32_t>, nb::arg("marked").noconvert(), nb::arg("ids").noconvert(), nb::arg("at"));
}

}  // namespace headlong
