// What the executor and the descent take from Python: array types and checks.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <vector>

#include "bind/arrays.h"
#include "kernels/kernels.h"

namespace headlong {

namespace nb = nanobind;

using AnyArray = nb::ndarray<nb::numpy, nb::ro, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::numpy, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::numpy, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::numpy, nb::c_contig, nb::device::cpu>;
using Words = nb::ndarray<const uint64_t, nb::numpy, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const int64_t, nb::numpy, nb::c_contig, nb::device::cpu>;

inline void check(bool good, const char* what) {
    if (!good) throw std::invalid_argument(what);
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

// Add the descent and the widening of hidden vectors to the module.
void bind_descent(nb::module_& m);
void bind_widened(nb::module_& m);

// The executor and readers; kernels by themselves; losses of heads.
void bind_executor(nb::module_& m);
void bind_reader(nb::module_& m);
void bind_kernels(nb::module_& m);
void bind_losses(nb::module_& m);

// Adds the search over blocks of classes.
void bind_blocks(nb::module_& m);
void bind_direct_call(nb::module_& m);

// Adds rotated codes.
void bind_codes(nb::module_& m);

// Adds what turns ids into class masks.
void bind_marks(nb::module_& m);

}  // namespace headlong
