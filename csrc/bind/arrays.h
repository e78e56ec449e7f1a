// Arrays that Python gets: they own their numbers.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <type_traits>
#include <utility>
#include <vector>

#include "executor/question.h"

namespace headlong {

// The names of the capsules in which one bound class hands what it holds to another.
constexpr const char* kExecutorCapsule = "headlong.Executor";
constexpr const char* kBlocksCapsule = "headlong.Blocks";
constexpr const char* kCodesCapsule = "headlong.Codes";

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

// get(item) of every item, a member or a function of it; [items], or in the shape that is named. Truth values are one byte each.
template <typename Item, typename Get>
nanobind::object column(const std::vector<Item>& items, const Get& get, std::initializer_list<size_t> shape = {}) {
    using Value = std::decay_t<decltype(std::invoke(get, items[0]))>;
    std::vector<std::conditional_t<std::is_same_v<Value, bool>, uint8_t, Value>> values;
    for (const Item& item : items) values.push_back(std::invoke(get, item));
    return owned_as<Value>(std::move(values), shape.size() == 0 ? std::initializer_list<size_t>{items.size()} : shape);
}

// The k best classes of every answer: ids [answers][k], -1 where there are fewer, and their numbers, -inf there.
struct BestColumns {
    nanobind::object ids, z;
};
template <typename Found>
BestColumns best_columns(const std::vector<Found>& answers, int64_t k) {
    const size_t wide = static_cast<size_t>(k);
    std::vector<int64_t> ids(answers.size() * wide, -1);
    std::vector<double> z(ids.size(), -kInf);
    for (size_t q = 0; q < answers.size(); ++q)
        for (size_t i = 0; i < std::min(wide, answers[q].best.size()); ++i) {
            ids[q * wide + i] = answers[q].best[i].id;
            z[q * wide + i] = answers[q].best[i].z;
        }
    return {owned(std::move(ids), {answers.size(), wide}), owned(std::move(z), {answers.size(), wide})};
}

// An answer by name: a NamedTuple of headlong/native/answers.py, its fields in their order.
template <typename... Parts>
nanobind::object named(const char* type, Parts&&... fields) {
    return nanobind::module_::import_("headlong.native.answers").attr(type)(std::forward<Parts>(fields)...);
}

}  // namespace headlong
