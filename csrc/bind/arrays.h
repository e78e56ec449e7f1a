// Arrays that Python gets: they own their numbers.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <initializer_list>
#include <utility>
#include <vector>

namespace headlong {

struct Answer;
struct Draw;
struct SampleRule;
struct Executor;

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

// Truth values, one byte each.
inline nanobind::object owned_flags(std::vector<uint8_t> values, std::initializer_list<size_t> shape) {
    return owned_as<bool>(std::move(values), shape);
}

// An answer by name: a NamedTuple of headlong/native/answers.py, its fields in their order.
template <typename... Parts>
nanobind::object named(const char* type, Parts&&... fields) {
    return nanobind::module_::import_("headlong.native.answers").attr(type)(std::forward<Parts>(fields)...);
}

// FoundTopK: logits, ids, log_probs [count][k], lse, error, proved, rows, bytes, dense [count]: the best of each answer, then id -1 of logit -inf.
nanobind::object topk_arrays(const Executor& executor, const std::vector<Answer>& answers, int64_t k);  // bind/executor.cpp

// FoundEntropy: entropy, error, lse, rows, bytes, dense [count].
nanobind::object entropy_arrays(const std::vector<Answer>& answers);  // bind/executor.cpp

SampleRule checked(const SampleRule& rule);  // bind/executor.cpp: or what is wrong with it
// FoundDraws: ids, logits, score, proved [count][n], rows, bytes, dense [count].
nanobind::object sample_arrays(const std::vector<Answer>& answers, const std::vector<Draw>& draws, int64_t n);  // bind/executor.cpp

}  // namespace headlong

void bind_experts(nanobind::module_& m);
