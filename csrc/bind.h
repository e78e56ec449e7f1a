// What the files that bind to Python share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <initializer_list>
#include <utility>
#include <vector>

namespace headlong {

// The name of the capsule in which one bound class hands its Executor to another.
constexpr const char* kExecutorCapsule = "headlong.Executor";

// A NumPy array that owns `values`.
template <typename T>
nanobind::object owned(std::vector<T> values, std::initializer_list<size_t> shape) {
    auto* keep = new std::vector<T>(std::move(values));
    nanobind::capsule owner(keep, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    static T nothing;
    return nanobind::cast(nanobind::ndarray<nanobind::numpy, T>(keep->empty() ? &nothing : keep->data(), shape, owner));
}

// The same of truth values, one byte each.
inline nanobind::object owned_flags(std::vector<uint8_t> values, std::initializer_list<size_t> shape) {
    static_assert(sizeof(bool) == 1);
    auto* keep = new std::vector<uint8_t>(std::move(values));
    nanobind::capsule owner(keep, [](void* p) noexcept { delete static_cast<std::vector<uint8_t>*>(p); });
    static bool nothing;
    bool* data = keep->empty() ? &nothing : reinterpret_cast<bool*>(keep->data());
    return nanobind::cast(nanobind::ndarray<nanobind::numpy, bool>(data, shape, owner));
}

}  // namespace headlong

void bind_experts(nanobind::module_& m);
