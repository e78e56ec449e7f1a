// One native call from the caller's array to the finished answer.
//
//     hidden (NumPy, float16 to float64) -> widened and checked -> blocks or the look at all classes -> TopK
//
// After other work has emptied the caches, every Python function and every small array of an answer costs microseconds: the checks,
// the choice of what answers, and the arrays are made here. Whatever is not plain (another kind of array, a number that is not
// finite, a wrong shape) is handed back as None; the same steps in Python then answer it, or say what is wrong.
#include "bind/answers.h"
#include "bind/arguments.h"  // before NumPy's headers, which want Python's first

#include <nanobind/stl/pair.h>

#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#include <numpy/arrayobject.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "bind/without_gil.h"
#include "executor/executor.h"
#include "executor/verbs.h"
#include "runtime/pool.h"
#include "runtime/processors.h"
#include "runtime/scratch.h"
#include "runtime/trace.h"

namespace headlong {
namespace {

constexpr int kMostThreads = 1024;

// HEADLONG_THREADS, else the processors at hand; 0: not a number that is allowed, which Python refuses in words.
int threads_at_hand() {
    const char* text = std::getenv("HEADLONG_THREADS");
    if (text == nullptr || *text == 0) return std::min(processors(), kMostThreads);
    int count = 0;
    for (; *text >= '0' && *text <= '9' && count <= kMostThreads; ++text) count = count * 10 + (*text - '0');
    return *text == 0 && count <= kMostThreads ? count : 0;
}

template <typename T>
std::pair<nb::object, T*> fresh(int type, npy_intp rows, npy_intp columns = -1) {
    npy_intp shape[2] = {rows, columns};
    PyObject* array = PyArray_SimpleNew(columns < 0 ? 1 : 2, shape, type);
    if (array == nullptr) throw nb::python_error();
    return {nb::steal(array), static_cast<T*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(array)))};
}

// A NamedTuple of the class `type`, without a Python call.
template <typename... Items>
nb::object named(nb::handle type, Items&&... items) {
    static const auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(&PyTuple_Type, Py_tp_alloc));
    PyObject* tuple = allocate(reinterpret_cast<PyTypeObject*>(type.ptr()), sizeof...(Items));
    if (tuple == nullptr) throw nb::python_error();
    Py_ssize_t at = 0;
    (PyTuple_SetItem(tuple, at++, nb::object(std::forward<Items>(items)).release().ptr()), ...);
    return nb::steal(tuple);
}

class DirectCall {
  public:
    // executor: the bound class's capsule; blocks: (k, capsule) of each search, the k best being what it is asked for by whoever wants no
    // more of them (0: as many as are wanted); kinds: TopK, Cost; sure: whether the blocks' bounds hold for every
    // query; proves: whether radii prove what they show; dense: batches beyond it are read densely; blocks_batch, blocks_most: the
    // batches and k that blocks take; threads 0: at hand; seen: the lengths of the vectors that radii were learned from; every: whether
    // the executor knows all classes, so that it may answer what blocks do not (else that is handed back); least: the eps from which
    // blocks find normalisers.
    DirectCall(nb::object executor, nb::tuple blocks, nb::object owners, nb::tuple kinds, nb::object path, double eps, double delta,
         uint64_t seed, int threads, double dense, int64_t blocks_batch, int64_t blocks_most, bool sure, bool proves, nb::tuple affine,
         std::pair<double, double> seen, bool every, double least)
        : owners_(nb::make_tuple(executor, blocks, owners)), topk_(kinds[0]), cost_(kinds[1]), path_(std::move(path)), eps_(eps), delta_(delta),
          dense_(dense), seed_(seed), blocks_batch_(blocks_batch), blocks_most_(blocks_most), threads_(threads), sure_(sure), proves_(proves), every_(every), least_(least), seen_(seen) {
        e_ = static_cast<const Executor*>(nb::cast<nb::capsule>(executor).data(kExecutorCapsule));
        check(e_ != nullptr, "an executor");
        for (nb::handle item : blocks) {
            const auto [most, capsule] = nb::cast<std::pair<int64_t, nb::capsule>>(item);
            const auto* found = static_cast<const Blocks*>(capsule.data(kBlocksCapsule));
            check(found != nullptr && found->dim == e_->dim && found->vocab == e_->vocab, "executor and blocks of one layer");
            check(most >= 0 && most <= e_->vocab, "a search finds some of the classes");
            searches_.push_back({most, found});
        }
        if (nb::len(affine) == 2) affine_ = {nb::cast<double>(affine[0]), nb::cast<double>(affine[1])};
    }

    // TopK, or None where Python is to look at the arguments.
    nb::object topk(nb::handle hidden, nb::handle k, nb::handle eps) const {
        if (!PyArray_CheckExact(hidden.ptr()) || !PyLong_CheckExact(k.ptr())) return nb::none();
        auto* array = reinterpret_cast<PyArrayObject*>(hidden.ptr());
        if (PyArray_NDIM(array) != 2 || PyArray_DIM(array, 1) != e_->dim || !PyArray_ISCARRAY_RO(array)) return nb::none();
        int beyond = 0;
        const int64_t count = PyArray_DIM(array, 0), best = PyLong_AsLongLongAndOverflow(k.ptr(), &beyond);
        Question question;
        question.k = best;
        question.eps = eps.is_none() ? eps_ : PyFloat_CheckExact(eps.ptr()) ? PyFloat_AsDouble(eps.ptr()) : -1;
        question.delta = delta_;
        question.seed = seed_;
        question.threads = threads_ > 0 ? threads_ : threads_at_hand();
        if (count < 1 || beyond != 0 || best < 1 || best > e_->vocab || !(question.eps >= 1e-300) || question.threads < 1) return nb::none();
        Scratch<double> wide;
        const double* rows = widened(array, count * e_->dim, wide);
        if (rows == nullptr) return nb::none();
        mark("Python before");
        std::vector<Answer> answers;
        unlocked([&] { answers = answered(rows, count, question); });
        mark("the interpreter's lock");
        if (answers.empty()) return nb::none();
        nb::object found = finished(answers, count, best);
        mark("hand-back");
        return found;
    }

  private:
    // The numbers in float64; null where they are of another type, or one is not finite or beyond float32.
    const double* widened(PyArrayObject* array, int64_t n, Scratch<double>& wide) const {
        const void* data = PyArray_DATA(array);
        double largest = std::numeric_limits<double>::infinity();
        const double* rows = nullptr;
        const int type = PyArray_TYPE(array);
        if (type == NPY_DOUBLE) {
            rows = static_cast<const double*>(data);
            largest = e_->kernels->largest_double(rows, n);
        } else if (type == NPY_FLOAT || type == NPY_HALF) {
            wide.resize(n);
            rows = wide.data();
            largest = e_->kernels->widen(data, type == NPY_FLOAT ? Kind::f32 : Kind::f16, n, wide.data());
        }
        return largest <= std::numeric_limits<float>::max() ? rows : nullptr;
    }

    // Whether a vector is of another size than all that radii were learned from, which then say nothing of it.
    bool unlike(const double* rows, int64_t count) const {
        if (seen_.first <= 0 && seen_.second == kInf) return false;
        for (int64_t q = 0; q < count; ++q) {
            double square = 0;
            for (int64_t j = 0; j < e_->dim; ++j) square += rows[q * e_->dim + j] * rows[q * e_->dim + j];
            const double length = std::sqrt(square);
            if (length < seen_.first || length > seen_.second) return true;
        }
        return false;
    }

    // None where Python is to find who answers.
    std::vector<Answer> answered(const double* rows, int64_t count, const Question& question) const {
        const bool dense = static_cast<double>(count) > dense_ || unlike(rows, count);
        const auto here = std::find_if(searches_.begin(), searches_.end(), [&](const auto& one) { return one.first == 0 || question.k <= one.first; });
        if (here == searches_.end() || dense || !(question.eps >= least_) || count > blocks_batch_ || question.k > blocks_most_)
            return every_ ? ask(*e_, rows, count, question, dense) : std::vector<Answer>{};
        const int64_t wanted = std::max(question.k, here->first);
        const bool ids_alone = std::isinf(question.eps);
        const Reach reach = ids_alone ? Reach{} : reach_for(question.eps, affine_.first, e_->vocab);
        const std::vector<Search> found = search(*here->second, rows, count, wanted, nullptr, false, question.threads, reach);
        std::vector<Answer> answers(count);
        std::vector<int64_t> left;
        for (int64_t q = 0; q < count; ++q) {
            if (ids_alone && found[q].done) answers[q] = answer_of(found[q], affine_.first, affine_.second);
            else if (ids_alone || !answer_within(found[q], affine_.first, affine_.second, e_->vocab, question.k, question.eps,
                                                 dot_error(*e_, rows + q * e_->dim), &answers[q]))
                left.push_back(q);
        }
        if (left.empty()) return answers;
        if (!every_) return {};
        Scratch<double> some(left.size() * e_->dim);
        for (size_t i = 0; i < left.size(); ++i) std::copy_n(rows + left[i] * e_->dim, e_->dim, some.data() + i * e_->dim);
        std::vector<Answer> others = ask(*e_, some.data(), static_cast<int64_t>(left.size()), question, !sure_);
        for (size_t i = 0; i < left.size(); ++i) answers[left[i]] = std::move(others[i]);
        return answers;
    }

    nb::object finished(const std::vector<Answer>& answers, int64_t count, int64_t k) const {
        auto [log_probs, log_prob] = fresh<double>(NPY_DOUBLE, count, k);
        auto [ids, id] = fresh<int64_t>(NPY_INT64, count, k);
        auto [logits, logit] = fresh<double>(NPY_DOUBLE, count, k);
        auto [lses, lse] = fresh<double>(NPY_DOUBLE, count);
        auto [errors, error] = fresh<double>(NPY_DOUBLE, count);
        auto [proofs, proved] = fresh<npy_bool>(NPY_BOOL, count);
        auto [rows, row] = fresh<int64_t>(NPY_INT64, count);
        auto [reads, read] = fresh<double>(NPY_DOUBLE, count);
        auto [denses, dense] = fresh<npy_bool>(NPY_BOOL, count);
        for (int64_t q = 0; q < count; ++q) {
            const Answer& a = answers[q];
            const int64_t there = static_cast<int64_t>(a.best.size());
            for (int64_t i = 0; i < k; ++i) {
                const int64_t at = q * k + i;
                id[at] = i < there ? a.best[i].id : -1;
                logit[at] = i < there ? a.best[i].z : -kInf;
                log_prob[at] = std::isfinite(logit[at]) ? e_->linked(logit[at]) - a.lse : i < there && std::isnan(a.lse) ? a.lse : -kInf;
            }
            lse[q] = a.lse;
            error[q] = a.error;
            proved[q] = a.proved && (proves_ || a.dense);
            row[q] = a.rows;
            read[q] = a.bytes;
            dense[q] = a.dense;
        }
        return named(topk_, log_probs, ids, logits, lses, errors, proofs, named(cost_, rows, reads, denses, path_));
    }

    nb::object owners_, topk_, cost_, path_;
    const Executor* e_ = nullptr;
    std::vector<std::pair<int64_t, const Blocks*>> searches_;
    std::pair<double, double> affine_{1, 0};
    double eps_, delta_, dense_;
    uint64_t seed_;
    int64_t blocks_batch_, blocks_most_;
    int threads_;
    bool sure_, proves_, every_;
    double least_;
    std::pair<double, double> seen_;
};

int load_numpy() {
    import_array1(-1);
    return 0;
}

}  // namespace

void bind_direct_call(nb::module_& m) {
    if (load_numpy() != 0) throw nb::python_error();
    nb::class_<DirectCall>(m, "DirectCall")
        .def(nb::init<nb::object, nb::tuple, nb::object, nb::tuple, nb::object, double, double, uint64_t, int, double, int64_t, int64_t, bool,
                      bool, nb::tuple, std::pair<double, double>, bool, double>(),
             nb::arg("executor"), nb::arg("blocks"), nb::arg("owners"), nb::arg("kinds"), nb::arg("path"), nb::arg("eps"), nb::arg("delta"),
             nb::arg("seed"), nb::arg("threads"), nb::arg("dense"), nb::arg("blocks_batch"), nb::arg("blocks_most"), nb::arg("sure"),
             nb::arg("proves"), nb::arg("affine"), nb::arg("seen"), nb::arg("every"), nb::arg("least"))
        .def("topk", &DirectCall::topk, nb::arg("hidden"), nb::arg("k"), nb::arg("eps").none());
}

}  // namespace headlong
