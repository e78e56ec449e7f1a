// One native call from the caller's array to the finished answer.
//
//     hidden (NumPy or torch, 16-bit to float64) -> widened and checked -> blocks or what knows all classes -> TopK, Lse, ...
//
// After other work has emptied the caches, every Python function and every small array of an answer costs microseconds: the checks,
// the choice of what answers, and the arrays are made here. Whatever is not plain (another kind of array, a number that is not
// finite, a wrong shape) is handed back as None; the same steps in Python then answer it, or say what is wrong.
#include "bind/arguments.h"  // before NumPy's headers, which want Python's first
#include "bind/numbers.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#include <numpy/arrayobject.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "bind/without_gil.h"
#include "reader/reader.h"
#include "runtime/processors.h"
#include "runtime/scratch.h"

namespace headlong {
namespace {

uint64_t fresh_seed() {
    std::random_device chance;
    return (static_cast<uint64_t>(chance()) << 32) | chance();
}

// An array [rows][columns], or [rows].
template <typename T>
std::pair<nb::object, T*> fresh(npy_intp rows, npy_intp columns = -1) {
    constexpr int type = std::is_same_v<T, double> ? NPY_DOUBLE : std::is_same_v<T, float> ? NPY_FLOAT : std::is_same_v<T, int64_t> ? NPY_INT64 : NPY_BOOL;
    npy_intp shape[2] = {rows, columns};
    PyObject* array = PyArray_SimpleNew(columns < 0 ? 1 : 2, shape, type);
    if (array == nullptr) throw nb::python_error();
    return {nb::steal(array), static_cast<T*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(array)))};
}

// A number as the caller has numbers, and how far that was rounded at most.
template <typename T>
T rounded(double value, double* lost) {
    const T to = static_cast<T>(value);
    if (std::isfinite(value)) *lost = std::max(*lost, std::fabs(static_cast<double>(to) - value));
    return to;
}

template <typename T>
T rounded_up(double value) {
    const T to = static_cast<T>(value);
    return static_cast<double>(to) < value ? std::nextafter(to, std::numeric_limits<T>::infinity()) : to;
}

// The Cost, a NamedTuple of the class `type`, without a Python call.
template <typename... Items>
nb::object made_of(nb::handle type, Items&&... items) {
    static const auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(&PyTuple_Type, Py_tp_alloc));
    PyObject* tuple = allocate(reinterpret_cast<PyTypeObject*>(type.ptr()), sizeof...(Items));
    if (tuple == nullptr) throw nb::python_error();
    Py_ssize_t at = 0;
    (PyTuple_SetItem(tuple, at++, nb::object(std::forward<Items>(items)).release().ptr()), ...);
    return nb::steal(tuple);
}

// A class of answers, a frozen record with a slot for each field: filled without a Python call, as its own `__init__` does.
struct Record {
    explicit Record(nb::object of) : type(std::move(of)), fields(type.attr("__slots__")) {}
    template <typename... Items>
    nb::object operator()(Items&&... items) const {
        static const auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(&PyBaseObject_Type, Py_tp_alloc));
        nb::object record = nb::steal(allocate(reinterpret_cast<PyTypeObject*>(type.ptr()), 0));
        if (!record.is_valid()) throw nb::python_error();
        size_t at = 0;
        const auto set = [&](const nb::object& item) {
            if (PyObject_GenericSetAttr(record.ptr(), nb::object(fields[at++]).ptr(), item.ptr()) != 0) throw nb::python_error();
        };
        (set(items), ...);
        return record;
    }
    nb::object type;
    nb::tuple fields;
};

// The classes of answers, and what Python does for arrays that are not NumPy's.
struct Classes {
    explicit Classes(const nb::tuple& t) : topk(t[0]), lse(t[1]), log_prob(t[2]), sample(t[3]), cost(t[4]), bfloat16(nb::cast<int>(t[5].attr("num"))) {}
    Record topk, lse, log_prob, sample;
    nb::object cost;
    int bfloat16;  // NumPy's number of a type that it knows from a package
};

// What each argument may be, by name.
struct Ranges {
    explicit Ranges(const nb::dict& of)
        : eps(of["eps"]), temperature(of["temperature"]), top_p(of["top_p"]), min_p(of["min_p"]), n(of["n"]), top_k(of["top_k"]),
          class0(of["class0"]), seed(of["seed"]), row0(of["position"]), float32_room(nb::cast<double>(of["float32 room"])) {}
    Range<double> eps, temperature, top_p, min_p;
    Range<int64_t> n, top_k, class0;
    Range<uint64_t> seed, row0;
    double float32_room;  // of eps, where answers are rounded to float32
};

class DirectCall {
  public:
    // reader: a bound Reader; kept: eps, delta and seed of the promise, and whether estimates without one are said; threads 0: at hand; classes, ranges: as above; as_numpy, like: an array as NumPy's, and an answer as the kind of an array; link: of logits, where it is
    // not affine.
    DirectCall(nb::object reader, std::tuple<double, double, uint64_t, bool> kept, int threads, nb::object path, nb::tuple classes, nb::dict ranges,
               nb::object as_numpy, nb::object like, nb::object link)
        : reader_(*static_cast<const Reader*>(nb::cast<nb::capsule>(reader.attr("reader")).data(kReaderCapsule))), owner_(std::move(reader)),
          path_(std::move(path)), as_numpy_(std::move(as_numpy)), like_(std::move(like)), link_(std::move(link)), classes_(classes),
          ranges_(ranges), threads_(threads) {
        std::tie(eps_, delta_, seed_, estimates_) = kept;
    }

    // Each verb gives None where Python is to look at the arguments.
    nb::object topk(nb::handle hidden, nb::handle k, nb::handle eps) const {
        Call call;
        if (!begin(hidden, eps, call) || !Range<int64_t>({1, reader_.executor->vocab}).read(k, &call.question.k)) return nb::none();
        std::vector<Answer> answers;
        unlocked([&] { answers = reader_.topk(call.rows, call.count, call.question); });
        if (answers.empty()) return nb::none();
        forget_untold(answers, call);
        return end(hidden, call.single ? topk_of<float>(answers, call.count, call.question.k) : topk_of<double>(answers, call.count, call.question.k));
    }

    nb::object lse(nb::handle hidden, nb::handle eps) const {
        Call call;
        if (!begin(hidden, eps, call)) return nb::none();
        std::vector<Answer> answers;
        unlocked([&] { answers = reader_.lse(call.rows, call.count, call.question); });
        if (answers.empty()) return nb::none();
        auto [lses, errors] = call.single ? normalisers<float>(answers) : normalisers<double>(answers);
        return end(hidden, classes_.lse(lses, errors, cost_of(answers, 0)));
    }

    nb::object log_prob(nb::handle hidden, nb::handle ids, nb::handle eps) const {
        Call call;
        if (!begin(hidden, eps, call)) return nb::none();
        const nb::object chosen = PyArray_CheckExact(ids.ptr()) ? nb::borrow(ids) : as_numpy_(ids, "ids");
        auto* array = reinterpret_cast<PyArrayObject*>(chosen.ptr());
        if (!PyArray_CheckExact(chosen.ptr()) || PyArray_TYPE(array) != NPY_INT64 || PyArray_NDIM(array) != 2 || PyArray_DIM(array, 0) != call.count ||
            !PyArray_ISCARRAY_RO(array))
            return nb::none();
        const Executor& e = *reader_.executor;
        const int64_t m = PyArray_DIM(array, 1), total = call.count * m;
        const auto* id = static_cast<const int64_t*>(PyArray_DATA(array));
        if (m == 0 || std::any_of(id, id + total, [&](int64_t one) { return one < 0 || one >= e.vocab; })) return nb::none();
        auto [logits, logit] = fresh<double>(call.count, m);
        std::vector<Answer> answers;
        unlocked([&, z = logit] {
            headlong::logits(e, call.rows, call.count, id, m, call.question.threads, z);
            answers = reader_.lse(call.rows, call.count, call.question);
        });
        if (answers.empty()) return nb::none();
        forget_untold(answers, call);
        std::vector<double> exponents(total);
        if (!linked(logits, logit, total, exponents.data())) return nb::none();
        const auto found = call.single ? log_prob_of<float>(answers, logits, exponents, m) : log_prob_of<double>(answers, logits, exponents, m);
        return end(hidden, found);
    }

    nb::object sample(nb::handle hidden, nb::handle n, nb::handle temperature, nb::handle top_k, nb::handle top_p, nb::handle min_p, nb::handle seed,
                      nb::handle row0, nb::handle class0, nb::handle eps, bool last) const {
        Call call;
        SampleRule rule;
        int64_t draws = 0;
        if (!begin(hidden, eps, call) || !ranges_.n.read(n, &draws) || !ranges_.temperature.read(temperature, &rule.temperature) ||
            !ranges_.top_k.read_or(top_k, 0, &rule.top_k) || !ranges_.top_p.read_or(top_p, 1, &rule.top_p) ||
            !ranges_.min_p.read_or(min_p, 0, &rule.min_p) || !ranges_.row0.read(row0, &rule.row0) || !ranges_.class0.read(class0, &rule.class0))
            return nb::none();
        if (seed.is_none()) rule.seed = fresh_seed();
        else if (!ranges_.seed.read(seed, &rule.seed)) return nb::none();
        rule.n = static_cast<int>(draws), rule.last = last;
        const bool weighed = std::isfinite(call.question.eps);
        if (weighed && (last || reader_.executor->preview.budget > 0)) return nb::none();  // a normaliser of another temperature; estimates without an error
        call.question.eps *= ranges_.float32_room;                               // the rest is for sums of what is kept
        std::vector<Answer> answers;
        std::vector<Draw> drawn;
        unlocked([&] { answers = reader_.sample(call.rows, call.count, {rule}, call.question, &drawn); });
        if (answers.empty()) return nb::none();
        return end(hidden, call.single ? sample_of<float>(answers, drawn, rule, weighed) : sample_of<double>(answers, drawn, rule, weighed));
    }

  private:
    // What all verbs take: vectors in float64, borrowed or widened, and what is asked of them.
    struct Call {
        nb::object array;
        Scratch<double> wide;
        const double* rows = nullptr;
        int64_t count = 0;
        bool single = false;  // numbers come and go in float32, or in less
        Question question;
    };

    bool begin(nb::handle hidden, nb::handle eps, Call& call) const {
        call.array = PyArray_CheckExact(hidden.ptr()) ? nb::borrow(hidden) : as_numpy_(hidden, "hidden");
        if (!PyArray_CheckExact(call.array.ptr())) return false;
        auto* array = reinterpret_cast<PyArrayObject*>(call.array.ptr());
        const int64_t dim = reader_.executor->dim;
        if (PyArray_NDIM(array) != 2 || PyArray_DIM(array, 0) < 1 || PyArray_DIM(array, 1) != dim || !PyArray_ISCARRAY_RO(array)) return false;
        call.count = PyArray_DIM(array, 0);
        call.single = PyArray_TYPE(array) != NPY_DOUBLE;
        call.question.delta = delta_;
        call.question.seed = seed_;
        call.question.threads = threads_ > 0 ? threads_ : threads_at_hand();
        if (!ranges_.eps.read_or(eps, eps_, &call.question.eps) || call.question.threads < 1) return false;
        if (call.single) call.question.eps *= ranges_.float32_room;
        call.rows = widened(array, call.count * dim, call.wide);
        return call.rows != nullptr;
    }

    // Log-probabilities that were not asked for are no numbers; a method that promises nothing says its estimates.
    void forget_untold(std::vector<Answer>& answers, const Call& call) const {
        if (!std::isinf(call.question.eps) || estimates_) return;
        for (Answer& one : answers) one.lse = std::numeric_limits<double>::quiet_NaN(), one.error = kInf;
    }

    nb::object end(nb::handle hidden, nb::object found) const {
        if (!PyArray_CheckExact(hidden.ptr())) found = like_(found, hidden);
        return found;
    }

    // The numbers in float64; null where they are of another type, or one is not finite or beyond float32.
    const double* widened(PyArrayObject* array, int64_t n, Scratch<double>& wide) const {
        const Kernels& kernels = *reader_.executor->kernels;
        const void* data = PyArray_DATA(array);
        double largest = kInf;
        const double* rows = nullptr;
        const int type = PyArray_TYPE(array);
        if (type == NPY_DOUBLE) {
            rows = static_cast<const double*>(data);
            largest = kernels.largest_double(rows, n);
        } else if (type == NPY_FLOAT || type == NPY_HALF || type == classes_.bfloat16) {
            wide.resize(n);
            rows = wide.data();
            largest = kernels.widen(data, type == NPY_FLOAT ? Kind::f32 : type == NPY_HALF ? Kind::f16 : Kind::bf16, n, wide.data());
        }
        return largest <= std::numeric_limits<float>::max() ? rows : nullptr;
    }

    // link(logits): of an affine link here, of others by their formula in Python.
    bool linked(nb::handle logits, const double* logit, int64_t n, double* out) const {
        const Executor& e = *reader_.executor;
        if (e.link.form == LinkForm::affine) return std::transform(logit, logit + n, out, [&](double z) { return e.linked(z); }), true;
        const nb::object found = link_(logits);
        auto* array = reinterpret_cast<PyArrayObject*>(found.ptr());
        if (!PyArray_CheckExact(found.ptr()) || PyArray_TYPE(array) != NPY_DOUBLE || PyArray_SIZE(array) != n || !PyArray_ISCARRAY_RO(array)) return false;
        std::copy_n(static_cast<const double*>(PyArray_DATA(array)), n, out);
        return true;
    }

    template <typename T>
    nb::object topk_of(const std::vector<Answer>& answers, int64_t count, int64_t k) const {
        auto [log_probs, log_prob] = fresh<T>(count, k);
        auto [ids, id] = fresh<int64_t>(count, k);
        auto [logits, logit] = fresh<double>(count, k);  // exact: rounded, they would tie
        auto [proofs, proved] = fresh<npy_bool>(count);
        std::vector<double> lost(count);
        for (int64_t q = 0; q < count; ++q) {
            const Answer& a = answers[q];
            const int64_t there = static_cast<int64_t>(a.best.size());
            const double none = std::isnan(a.lse) ? a.lse : -kInf;
            for (int64_t i = 0; i < k; ++i) {
                const int64_t at = q * k + i;
                const double z = i < there ? a.best[i].z : -kInf;
                id[at] = i < there ? a.best[i].id : -1;
                logit[at] = z;
                log_prob[at] = rounded<T>(i < there ? headlong::log_prob_of(*reader_.executor, a, z) : none, &lost[q]);
            }
            proved[q] = a.proved;
        }
        auto [lses, errors] = normalisers<T>(answers, lost.data());
        return classes_.topk(log_probs, ids, logits, lses, errors, proofs, cost_of(answers, 0));
    }

    template <typename T>
    nb::object log_prob_of(const std::vector<Answer>& answers, const nb::object& logits, const std::vector<double>& exponents, int64_t m) const {
        const auto count = static_cast<int64_t>(answers.size());
        auto [log_probs, log_prob] = fresh<T>(count, m);
        std::vector<double> lost(count);
        for (int64_t i = 0; i < count * m; ++i) log_prob[i] = rounded<T>(exponents[i] - answers[i / m].lse, &lost[i / m]);
        auto [lses, errors] = normalisers<T>(answers, lost.data());
        return classes_.log_prob(log_probs, logits, lses, errors, cost_of(answers, m));
    }

    template <typename T>
    nb::object sample_of(const std::vector<Answer>& answers, const std::vector<Draw>& draws, const SampleRule& rule, bool weighed) const {
        const auto count = static_cast<int64_t>(answers.size()), n = static_cast<int64_t>(rule.n);
        auto [ids, id] = fresh<int64_t>(count, n);
        auto [logits, logit] = fresh<double>(count, n);
        auto [scores, score] = fresh<double>(count, n);
        auto [proofs, proved] = fresh<npy_bool>(count, n);
        for (int64_t i = 0; i < count * n; ++i) {
            id[i] = draws[i].id;
            logit[i] = draws[i].z;
            score[i] = draws[i].score;
            proved[i] = draws[i].proved;
        }
        if (!weighed) return classes_.sample(ids, logits, scores, proofs, cost_of(answers, 0), nb::none(), nb::none(), nb::none(), nb::none());
        auto [log_probs, log_prob] = fresh<T>(count, n);
        auto [masses, mass] = fresh<T>(count);
        auto [errors, error] = fresh<T>(count);
        const Executor& e = *reader_.executor;
        for (int64_t q = 0; q < count; ++q) {
            const double lse = answers[q].lse, summed = static_cast<double>(e.vocab + 8) * 0x1p-53 * (1 + std::fabs(lse));
            double lost = 0;
            for (int64_t i = q * n; i < (q + 1) * n; ++i)
                log_prob[i] = rounded<T>(draws[i].id < 0 ? -kInf : e.linked(draws[i].z) / rule.temperature - lse, &lost);
            mass[q] = rounded<T>(answers[q].kept, &lost);
            error[q] = rounded_up<T>(answers[q].error + summed + lost);
        }
        return classes_.sample(ids, logits, scores, proofs, cost_of(answers, 0), log_probs, masses, errors, nb::none());
    }

    // `lost` of each: what rounding took of its other numbers.
    template <typename T>
    static std::pair<nb::object, nb::object> normalisers(const std::vector<Answer>& answers, const double* lost = nullptr) {
        auto [lses, lse] = fresh<T>(answers.size());
        auto [errors, error] = fresh<T>(answers.size());
        for (size_t q = 0; q < answers.size(); ++q) {
            double most = lost == nullptr ? 0 : lost[q];
            lse[q] = rounded<T>(answers[q].lse, &most);
            error[q] = rounded_up<T>(answers[q].error + most);
        }
        return {lses, errors};
    }

    // Of the answers and of `more` rows of each.
    nb::object cost_of(const std::vector<Answer>& answers, int64_t more) const {
        auto [rows, row] = fresh<int64_t>(answers.size());
        auto [reads, read] = fresh<double>(answers.size());
        auto [denses, dense] = fresh<npy_bool>(answers.size());
        for (size_t q = 0; q < answers.size(); ++q) {
            row[q] = answers[q].rows + more;
            read[q] = answers[q].bytes + static_cast<double>(more) * reader_.executor->row_bytes();
            dense[q] = answers[q].dense;
        }
        return made_of(classes_.cost, rows, reads, denses, path_);
    }

    const Reader& reader_;
    nb::object owner_, path_, as_numpy_, like_, link_;
    Classes classes_;
    Ranges ranges_;
    double eps_ = 0, delta_ = 0;
    uint64_t seed_ = 0;
    int threads_;
    bool estimates_ = false;
};

int load_numpy() {
    import_array1(-1);
    return 0;
}

}  // namespace

void bind_direct_call(nb::module_& m) {
    if (load_numpy() != 0) throw nb::python_error();
    nb::class_<DirectCall>(m, "DirectCall")
        .def(nb::init<nb::object, std::tuple<double, double, uint64_t, bool>, int, nb::object, nb::tuple, nb::dict, nb::object, nb::object, nb::object>(),
             nb::arg("reader"), nb::arg("kept"), nb::arg("threads"), nb::arg("path"), nb::arg("classes"), nb::arg("ranges"), nb::arg("as_numpy"),
             nb::arg("like"), nb::arg("link"))
        .def("topk", &DirectCall::topk, nb::arg("hidden").none(), nb::arg("k").none(), nb::arg("eps").none())
        .def("lse", &DirectCall::lse, nb::arg("hidden").none(), nb::arg("eps").none())
        .def("log_prob", &DirectCall::log_prob, nb::arg("hidden").none(), nb::arg("ids").none(), nb::arg("eps").none())
        .def("sample", &DirectCall::sample, nb::arg("hidden").none(), nb::arg("n").none(), nb::arg("temperature").none(), nb::arg("top_k").none(), nb::arg("top_p").none(),
             nb::arg("min_p").none(), nb::arg("seed").none(), nb::arg("row0").none(), nb::arg("class0").none(), nb::arg("eps").none(), nb::arg("last"));
}

}  // namespace headlong
