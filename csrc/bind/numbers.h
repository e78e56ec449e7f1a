// Numbers as callers pass them: plain ones are read here, everything else is left to Python, which knows more kinds of numbers and
// says what is wrong.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>

#include <cstdint>
#include <limits>
#include <utility>

namespace headlong {

namespace nb = nanobind;

// Python's bool is an int, but no number.
inline bool is_int(nb::handle value) { return PyLong_CheckExact(value.ptr()); }

// Reads an int as T, a 64-bit integer or a double; false where T cannot hold it.
template <typename T>
bool read_int(nb::handle value, T* out) {
    if constexpr (std::numeric_limits<T>::is_integer && std::numeric_limits<T>::is_signed) *out = PyLong_AsLongLong(value.ptr());
    else if constexpr (std::numeric_limits<T>::is_integer) *out = PyLong_AsUnsignedLongLong(value.ptr());
    else *out = PyLong_AsDouble(value.ptr());
    if (PyErr_Occurred() == nullptr) return true;
    PyErr_Clear();
    return false;
}

// What an argument may be, both ends included; of integers or, with T = double, of floats and integers.
template <typename T>
struct Range {
    T low{}, high{};

    Range() = default;
    explicit Range(nb::handle pair) : Range(nb::cast<std::pair<T, T>>(pair)) {}
    explicit Range(const std::pair<T, T>& ends) : low(ends.first), high(ends.second) {}

    // False where it is not a plain number within.
    bool read(nb::handle value, T* out) const {
        if (is_int(value)) {
            if (!read_int(value, out)) return false;
        } else {
            if (std::numeric_limits<T>::is_integer || !PyFloat_Check(value.ptr())) return false;
            *out = static_cast<T>(PyFloat_AsDouble(value.ptr()));
        }
        return low <= *out && *out <= high;
    }

    // The same, where None stands for `none`.
    bool read_or(nb::handle value, T none, T* out) const {
        if (!value.is_none()) return read(value, out);
        *out = none;
        return true;
    }
};

}  // namespace headlong
