// Arrays that Python gets: they own their numbers.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <initializer_list>
#include <utility>
#include <vector>

namespace headlong {

// The names of the capsules in which one bound class hands what it holds to another.
constexpr const char* kExecutorCapsule = "headlong.Executor";
constexpr const char* kBlocksCapsule = "headlong.Blocks";
constexpr const char* kCodesCapsule = "headlong.Codes";
constexpr const char* kReaderCapsule = "headlong.Reader";

// A NumPy array that owns `values`, seen as a type of the same size.
template <typename Seen, typename T>
nanobind::object owned_as(std::vector<T> values, std::initializer_list<size_t> shape) {
    static_assert(sizeof(Seen) == sizeof(T));
    auto* keep = new std::vector<T>(std::move(values));
    nanobind::capsule owner(keep, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    static Seen nothing;
    Seen* data = keep->empty() ? &nothing : reinterpret_cast<Seen*>(keep->data());
    return nanobind::cast(nanobind::ndarray<nanobind::numpy, Seen>(data, shape, owner));
}

template <typename T>
nanobind::object owned(std::vector<T> values, std::initializer_list<size_t> shape) {
    return owned_as<T>(std::move(values), shape);
}

// Truth values, one byte each.
inline nanobind::object owned_flags(std::vector<uint8_t> values, std::initializer_list<size_t> shape) {
    return owned_as<bool>(std::move(values), shape);
}

// An answer by name: a NamedTuple of headlong/native/answers.py, its fields in their order.
template <typename... Parts>
nanobind::object named(const char* type, Parts&&... fields) {
    return nanobind::module_::import_("headlong.native.answers").attr(type)(std::forward<Parts>(fields)...);
}

}  // namespace headlong

void bind_experts(nanobind::module_& m);
