// What is taken from Python: array types and checks.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <vector>

#include "bind/arrays.h"
#include "kernels/kernels.h"
#include "kernels/levels.h"

namespace headlong {

namespace nb = nanobind;

using AnyArray = nb::ndarray<nb::numpy, nb::ro, nb::c_contig, nb::device::cpu>;
template <typename T>
using ArrayOf = nb::ndarray<const T, nb::numpy, nb::c_contig, nb::device::cpu>;
using Floats = ArrayOf<float>;
using Doubles = ArrayOf<double>;
using Bytes = ArrayOf<uint8_t>;
using Words = ArrayOf<uint64_t>;
using Ids = ArrayOf<int64_t>;

inline void check(bool good, const char* what) {
    if (!good) throw std::invalid_argument(what);
}

// Whether an array of Python's is [rows][columns].
template <typename Array>
bool is_matrix(const Array& array, int64_t rows, int64_t columns) {
    return array.ndim() == 2 && static_cast<int64_t>(array.shape(0)) == rows && static_cast<int64_t>(array.shape(1)) == columns;
}

inline int64_t batch_of(const Doubles& hidden, int64_t dim) {
    check(hidden.ndim() == 2 && static_cast<int64_t>(hidden.shape(1)) == dim, "hidden must be [batch, dim]");
    return static_cast<int64_t>(hidden.shape(0));
}

// A mask for all of a batch, or for each of its rows.
inline void check_mask(const std::optional<Bytes>& mask, int64_t batch, int64_t vocab) {
    check(!mask || is_matrix(*mask, 1, vocab) || is_matrix(*mask, batch, vocab), "mask must be [1 or batch, vocab]");
}

inline const Level& level_of(const std::string& isa) {
    const Level* level = level_for(isa.c_str());
    check(level != nullptr, "this CPU does not have that instruction set");
    return *level;
}

// Where a name stands in a list of them; the enum that the list names has the same order.
template <typename Enum, size_t N>
Enum enum_of(const std::string& name, const char* const (&names)[N], const char* what) {
    for (size_t i = 0; i < N; ++i)
        if (name == names[i]) return static_cast<Enum>(i);
    throw std::invalid_argument(what);
}

inline Kind kind_of(const std::string& name) { return enum_of<Kind>(name, kKinds, "rows are stored in a kind that is not known"); }

inline LinkForm link_form(const std::string& name) { return enum_of<LinkForm>(name, kLinkForms, "a link is affine, softcap, table or gss"); }

inline const void* weight_of(const AnyArray& array, Kind kind) {
    check(array.ndim() == 2, "weight must be [vocab, dim]");
    check(array.itemsize() == static_cast<size_t>(item_bytes(kind)), "weight's item size does not fit its kind");
    return array.data();
}

// A layer's rows of any kind. Those in blocks of codes are bytes.
struct StoredRows {
    const void* data;
    Kind kind;
    int64_t vocab, dim;

    const char* row(int64_t i) const { return static_cast<const char*>(data) + i * row_bytes(kind, dim); }
};

inline StoredRows rows_of(const AnyArray& array, const std::string& name) {
    const Kind kind = kind_of(name);
    const auto shape = [&](int axis) { return static_cast<int64_t>(array.shape(axis)); };
    if (!in_blocks_of_codes(kind)) {
        const void* rows = weight_of(array, kind);
        return {rows, kind, shape(0), shape(1)};
    }
    check(array.ndim() == 2 && array.itemsize() == 1, "rows in blocks of codes are bytes [vocab, bytes]");
    const BlockSize size = block_size(kind);
    const int64_t dim = size.weights == 0 ? shape(1) - size.bytes : shape(1) / size.bytes * size.weights;
    check(dim > 0 && row_bytes(kind, dim) == shape(1), "a row has whole blocks of codes");
    return {array.data(), kind, shape(0), dim};
}

}  // namespace headlong
