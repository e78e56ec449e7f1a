// The one native face of a reader: a question about the caller's array, to the finished answer.
//
//     ask(hidden, Question, view) -> view            hidden: NumPy or torch, 16-bit to float64 -> widened and checked -> Reader -> view's fields
//
// After other work has emptied the caches, every Python function and every small array of an answer costs microseconds: the checks,
// the choice of what answers, and the arrays are made here. Whatever is not plain (another kind of array, a number that is not
// finite, a wrong shape) is handed back as None; Python's checks then bring it into the plain form, or say what is wrong.
#include "bind/arguments.h"  // before NumPy's headers, which want Python's first
#include "bind/numbers.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#include <numpy/arrayobject.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
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

// headlong.question.Question and Filters, in the order of their fields; tests/native compares them.
constexpr size_t kVerb = 0, kK = 1, kIds = 2, kEps = 3, kAt = 4, kFilters = 5, kMask = 6;
constexpr const char* kQuestionFields[] = {"verb", "k", "ids", "eps", "temperature", "filters", "mask"};
constexpr size_t kN = 0, kTemperature = 1, kTopK = 2, kTopP = 3, kMinP = 4, kSeed = 5, kRow0 = 6, kClass0 = 7, kLast = 8;
constexpr const char* kFilterFields[] = {"n", "temperature", "top_k", "top_p", "min_p", "seed", "row0", "class0", "last"};
enum class Verb { best, given, normaliser, draw, functional };
constexpr const char* kVerbs[] = {"best", "given", "normaliser", "draw", "functional"};

// What an answer can say; `cost` is rows, bytes, full and path as one.
enum class Part { ids, logits, log_probs, lse, error, kept, proved, score, value, rows, bytes, full, path, cost, none };
constexpr const char* kParts[] = {"ids", "logits", "log_probs", "lse", "error", "kept", "proved", "score", "value", "rows", "bytes", "full", "path", "cost"};

// A class of answers: a NamedTuple, or a frozen record with a slot for each field. Filled without a Python call, as its own `__init__` does.
struct View {
    explicit View(nb::handle of) : type(nb::borrow(of)), is_tuple(nb::hasattr(of, "_fields")), fields(type.attr(is_tuple ? "_fields" : "__slots__")) {
        for (nb::handle field : fields) {
            const auto name = nb::cast<std::string>(field);
            const auto* found = std::find(std::begin(kParts), std::end(kParts), std::string_view(name == "entropy" ? "value" : name));
            parts.push_back(static_cast<Part>(found - std::begin(kParts)));
        }
    }
    nb::object type;
    bool is_tuple;
    nb::tuple fields;
    std::vector<Part> parts;
};

// What Python says once: the classes of answers (the last is the record of all of them, for callers within the library), what each argument
// may be, and what it does for arrays that are not NumPy's.
class Records {
  public:
    Records(nb::tuple views, nb::object cost, nb::object bfloat16, nb::dict ranges, nb::object as_numpy, nb::object like)
        : cost(std::move(cost)), as_numpy(std::move(as_numpy)), like(std::move(like)), bfloat16(nb::cast<int>(bfloat16.attr("num"))),
          eps(ranges["eps"]), temperature(ranges["temperature"]), top_p(ranges["top_p"]), min_p(ranges["min_p"]), n(ranges["n"]),
          top_k(ranges["top_k"]), class0(ranges["class0"]), seed(ranges["seed"]), row0(ranges["position"]),
          float32_room(nb::cast<double>(ranges["float32 room"])) {
        for (nb::handle view : views) views_.emplace_back(view);
    }

    const View& view(nb::handle type) const {
        for (const View& one : views_)
            if (one.type.is(type)) return one;
        throw std::invalid_argument("a view is one of the classes of answers");
    }
    bool is_whole(const View& view) const { return &view == &views_.back(); }

    nb::object cost, as_numpy, like;
    int bfloat16;  // NumPy's number of a type that it knows from a package
    Range<double> eps, temperature, top_p, min_p;
    Range<int64_t> n, top_k, class0;
    Range<uint64_t> seed, row0;
    double float32_room;  // of eps, where answers are rounded to float32

  private:
    std::vector<View> views_;
};

// An array of Python's that is [rows][columns] (or [rows], where columns is -1) of a type, as it lies in memory; null where it is not.
const void* plain(nb::handle given, int type, int64_t rows, int64_t columns) {
    if (!PyArray_CheckExact(given.ptr())) return nullptr;
    auto* array = reinterpret_cast<PyArrayObject*>(given.ptr());
    const bool fits = PyArray_EquivTypenums(PyArray_TYPE(array), type) && PyArray_NDIM(array) == (columns < 0 ? 1 : 2) && PyArray_DIM(array, 0) == rows &&
                      (columns < 0 || PyArray_DIM(array, 1) == columns) && PyArray_ISCARRAY_RO(array);
    return fits ? PyArray_DATA(array) : nullptr;
}

class BoundReader {
  public:
    // executor, codes, blocks: objects with capsules, over the same rows, or None; limits: of blocks the largest batch, the largest k for
    // such batches and for others, and whether they find samples; every: see reader/reader.h. about: headlong.question.About.
    BoundReader(nb::object records, nb::object executor, nb::object codes, nb::object blocks, std::tuple<int64_t, int64_t, int64_t, bool> limits, bool every,
                nb::tuple about)
        : kept_(nb::make_tuple(executor, codes, blocks, records)), records_(*nb::cast<const Records*>(records)) {
        Reader& r = reader_;
        r.executor = held<Executor>(executor, kExecutorCapsule);
        check(r.executor != nullptr, "an executor");
        r.codes = held<Codes>(codes, kCodesCapsule);
        r.blocks = held<Blocks>(blocks, kBlocksCapsule);
        check(r.codes == nullptr || (r.codes->rows->vocab == r.executor->vocab && r.codes->rows->dim == r.executor->dim), "codes of the same layer");
        check(r.blocks == nullptr || (r.blocks->vocab == r.executor->vocab && r.blocks->dim == r.executor->dim), "blocks of the same layer");
        std::tie(r.max_batch, r.max_k, r.max_k_of_batches, r.samples) = limits;
        r.samples = r.samples && r.executor->link.form == LinkForm::affine;
        r.every = every;
        check(nb::len(about) == 7, "what a reader says of itself: eps, delta, seed, estimates, threads, path, link");
        eps_ = nb::cast<double>(about[0]), delta_ = nb::cast<double>(about[1]), seed_ = nb::cast<uint64_t>(about[2]);
        estimates_ = nb::cast<bool>(about[3]), threads_ = nb::cast<int>(about[4]), path_ = about[5], link_ = about[6];
        few_path_ = nb::str((std::string("rows/") + r.executor->isa).c_str());
        check(eps_ > 0 && delta_ >= 0 && delta_ < 1, "eps > 0, 0 <= delta < 1");
    }

    // None where this reader has no answer, or where Python is to look at the arguments: who asks for the whole record has checked them.
    nb::object ask(nb::handle hidden, nb::tuple question, nb::handle type) const {
        const View& view = records_.view(type);
        Call call;
        call.checked = records_.is_whole(view);
        if (!begin(hidden, question, call)) {
            check(!call.checked, "a question that was not checked");
            return nb::none();
        }
        if (!answer(call)) return nb::none();
        const auto nothing = [](const Draw& draw) { return draw.id < 0; };  // which Python says
        if (!call.checked && std::any_of(call.draws.begin(), call.draws.end(), nothing)) return nb::none();
        if (!call.checked) forget_untold(call);
        nb::object found = call.single ? shown<float>(call, view) : shown<double>(call, view);
        return PyArray_CheckExact(hidden.ptr()) ? found : records_.like(found, hidden);
    }

    const char* isa() const { return reader_.executor->isa; }
    nb::object capsule() const { return kept_[0].attr("capsule"); }
    nb::object estimates() const { return kept_[1].attr("estimates"); }  // of its codes

  private:
    template <typename T>
    static const T* held(const nb::object& by, const char* name) {
        return by.is_none() ? nullptr : static_cast<const T*>(nb::cast<nb::capsule>(by.attr("capsule")).data(name));
    }

    // One question: vectors in float64, borrowed or widened, what is asked of them, and what was found.
    struct Call {
        nb::object array, chosen, logits;
        Scratch<double> wide;
        const double* rows = nullptr;
        int64_t count = 0, m = 0;
        const int64_t* ids = nullptr;
        double* logit = nullptr;
        bool single = false;  // numbers come and go in float32, or in less
        bool told = false;    // there is a normaliser, or an estimate of one
        bool checked = false;  // by Python, for which a top_k of 0 is off
        Verb verb = Verb::best;
        Question question;
        std::vector<SampleRule> rules;
        std::vector<Answer> answers;
        std::vector<Draw> draws;
        std::vector<double> exponents;  // of given classes
    };

    bool begin(nb::handle hidden, const nb::tuple& question, Call& call) const {
        check(nb::len(question) == std::size(kQuestionFields), "a question has the fields of headlong.question.Question");
        const auto verb = nb::borrow(question[kVerb]);
        for (size_t i = 0; i < std::size(kVerbs); ++i)
            if (PyUnicode_CompareWithASCIIString(verb.ptr(), kVerbs[i]) == 0) call.verb = static_cast<Verb>(i);
        call.array = PyArray_CheckExact(hidden.ptr()) ? nb::borrow(hidden) : nb::object(records_.as_numpy(hidden, "hidden"));
        if (!PyArray_CheckExact(call.array.ptr())) return false;
        auto* array = reinterpret_cast<PyArrayObject*>(call.array.ptr());
        const Executor& e = *reader_.executor;
        if (PyArray_NDIM(array) != 2 || PyArray_DIM(array, 1) != e.dim || !PyArray_ISCARRAY_RO(array)) return false;
        call.count = PyArray_DIM(array, 0);
        call.single = PyArray_TYPE(array) != NPY_DOUBLE;
        Question& q = call.question;
        q.delta = delta_, q.seed = seed_;
        q.threads = threads_ > 0 ? threads_ : threads_at_hand();
        if (!records_.eps.read_or(question[kEps], eps_, &q.eps) || q.threads < 1) return false;
        if (call.single) q.eps *= records_.float32_room;
        double temperature = 1;
        if (!records_.temperature.read(question[kAt], &temperature)) return false;
        q.beta = 1 / temperature;
        call.told = std::isfinite(q.eps) || (estimates_ && (!call.checked || question[kEps].is_none()));
        const nb::object mask = nb::borrow(question[kMask]);
        if (!mask.is_none()) {
            q.mask = static_cast<const uint8_t*>(plain(mask, NPY_UINT8, call.count, e.vocab));
            q.mask_per_row = q.mask != nullptr && call.count != 1;
            if (q.mask == nullptr) q.mask = static_cast<const uint8_t*>(plain(mask, NPY_UINT8, 1, e.vocab));
            if (q.mask == nullptr) return false;
        }
        const bool read = call.verb == Verb::best ? Range<int64_t>({1, e.vocab}).read(question[kK], &q.k)
                          : call.verb == Verb::given ? read_ids(question[kIds], call)
                          : call.verb == Verb::draw ? read_filters(nb::borrow(question[kFilters]), call)
                                                    : call.verb == Verb::normaliser || std::isfinite(q.eps);
        return read && widened(array, call);
    }

    bool read_ids(nb::handle ids, Call& call) const {
        call.chosen = PyArray_CheckExact(ids.ptr()) ? nb::borrow(ids) : nb::object(records_.as_numpy(ids, "ids"));
        auto* array = reinterpret_cast<PyArrayObject*>(call.chosen.ptr());
        if (!PyArray_CheckExact(call.chosen.ptr()) || PyArray_NDIM(array) != 2) return false;
        call.m = PyArray_DIM(array, 1);
        call.ids = static_cast<const int64_t*>(plain(call.chosen, NPY_INT64, call.count, call.m));
        const int64_t vocab = reader_.executor->vocab;
        return call.ids != nullptr && std::all_of(call.ids, call.ids + call.count * call.m, [&](int64_t one) { return one >= 0 && one < vocab; });
    }

    // One number for all rows, which then count up from row0, or an array with one for each.
    bool read_filters(const nb::object& given, Call& call) const {
        if (!nb::isinstance<nb::tuple>(given) || nb::len(given) != std::size(kFilterFields)) return false;
        const nb::tuple of(given);
        const auto each = [&](size_t field, int type) { return plain(of[field], type, call.count, -1); };
        SampleRule one;
        int64_t draws = 0;
        const Records& r = records_;
        if (!r.n.read(of[kN], &draws) || !r.class0.read(of[kClass0], &one.class0)) return false;
        one.n = static_cast<int>(draws), one.last = nb::cast<bool>(of[kLast]);
        if (PyArray_CheckExact(nb::object(of[kSeed]).ptr())) {
            const auto* temperature = static_cast<const double*>(each(kTemperature, NPY_DOUBLE));
            const auto* top_k = static_cast<const int64_t*>(each(kTopK, NPY_INT64));
            const auto *top_p = static_cast<const double*>(each(kTopP, NPY_DOUBLE)), *min_p = static_cast<const double*>(each(kMinP, NPY_DOUBLE));
            const auto *seed = static_cast<const uint64_t*>(each(kSeed, NPY_UINT64)), *row = static_cast<const uint64_t*>(each(kRow0, NPY_UINT64));
            if (!temperature || !top_k || !top_p || !min_p || !seed || !row) return false;
            for (int64_t q = 0; q < call.count; ++q) {
                const SampleRule own{one.n, temperature[q], top_k[q], top_p[q], min_p[q], seed[q], row[q], one.class0, one.last};
                if (!(own.temperature > 0 && own.top_k >= 0 && own.top_p > 0 && own.top_p <= 1 && own.min_p >= 0 && own.min_p <= 1)) return false;
                call.rules.push_back(own);
            }
            if (call.count == 0) call.rules.push_back(one);
        } else {
            const bool off = call.checked && is_int(of[kTopK]) && PyLong_AsLong(nb::object(of[kTopK]).ptr()) == 0;
            if (!r.temperature.read(of[kTemperature], &one.temperature) || !(off || r.top_k.read_or(of[kTopK], 0, &one.top_k)) ||
                !r.top_p.read_or(of[kTopP], 1, &one.top_p) || !r.min_p.read_or(of[kMinP], 0, &one.min_p) || !r.seed.read(of[kSeed], &one.seed) ||
                !r.row0.read(of[kRow0], &one.row0))
                return false;
            call.rules.push_back(one);
        }
        if (std::isfinite(call.question.eps)) call.question.eps *= r.float32_room;  // the rest is for sums of what is kept
        return true;
    }

    // The numbers in float64; false where they are of another type, or one is not finite or beyond float32.
    bool widened(PyArrayObject* array, Call& call) const {
        const Kernels& kernels = *reader_.executor->kernels;
        const int64_t n = call.count * reader_.executor->dim;
        const void* data = PyArray_DATA(array);
        const int type = PyArray_TYPE(array);
        double largest = kInf;
        if (n == 0) {
            largest = 0;
        } else if (type == NPY_DOUBLE) {
            call.rows = static_cast<const double*>(data);
            largest = kernels.largest_double(call.rows, n);
        } else if (type == NPY_FLOAT || type == NPY_HALF || type == records_.bfloat16) {
            call.wide.resize(n);
            call.rows = call.wide.data();
            largest = kernels.widen(data, type == NPY_FLOAT ? Kind::f32 : type == NPY_HALF ? Kind::f16 : Kind::bf16, n, call.wide.data());
        }
        return largest <= std::numeric_limits<float>::max();
    }

    // False where the reader has no answer.
    bool answer(Call& call) const {
        const Executor& e = *reader_.executor;
        if (!reader_.every && call.verb != Verb::best) return false;  // its rows are not all there are
        if (call.verb == Verb::draw && std::isfinite(call.question.eps) && (e.preview.budget > 0 || call.rules.front().last))
            return false;  // estimates without an error; a normaliser of another temperature than the filters'
        if (call.verb == Verb::given) std::tie(call.logits, call.logit) = fresh<double>(call.count, call.m);
        unlocked([&] {
            switch (call.verb) {
                case Verb::best: call.answers = reader_.topk(call.rows, call.count, call.question); break;
                case Verb::given:
                    headlong::logits(e, call.rows, call.count, call.ids, call.m, call.question.threads, call.logit);
                    [[fallthrough]];
                case Verb::normaliser:
                    if (call.told || call.verb != Verb::given) call.answers = reader_.lse(call.rows, call.count, call.question);
                    else call.answers.resize(call.count);
                    break;
                case Verb::draw: call.answers = reader_.sample(call.rows, call.count, call.rules, call.question, &call.draws); break;
                case Verb::functional: call.answers = reader_.entropy(call.rows, call.count, call.question);
            }
        });
        return (!call.answers.empty() || call.count == 0) && (call.verb != Verb::given || !call.told || linked(call));
    }

    // Log-probabilities that were not asked for are no numbers; a method that promises nothing says its estimates.
    static void forget_untold(Call& call) {
        if (call.told || call.verb == Verb::draw) return;
        for (Answer& one : call.answers) one.lse = std::numeric_limits<double>::quiet_NaN(), one.error = kInf;
    }

    // link(logits): of an affine link here, of others by their formula in Python.
    bool linked(Call& call) const {
        const Executor& e = *reader_.executor;
        const int64_t n = call.count * call.m;
        call.exponents.resize(n);
        if (e.link.form == LinkForm::affine) return std::transform(call.logit, call.logit + n, call.exponents.begin(), [&](double z) { return e.linked(z); }), true;
        const nb::object found = link_(call.logits);
        const auto* linked = static_cast<const double*>(plain(found, NPY_DOUBLE, call.count, call.m));
        if (linked != nullptr) std::copy_n(linked, n, call.exponents.begin());
        return linked != nullptr;
    }

    template <typename T>
    nb::object shown(const Call& call, const View& view) const {
        const Executor& e = *reader_.executor;
        const std::vector<Answer>& answers = call.answers;
        const int64_t count = call.count;
        std::array<nb::object, static_cast<size_t>(Part::none) + 1> parts;
        const auto put = [&](Part part, nb::object made) { parts[static_cast<size_t>(part)] = std::move(made); };
        const auto each = [&](Part part, auto sample, const auto& get) {
            auto [made, out] = fresh<decltype(sample)>(count);
            for (int64_t q = 0; q < count; ++q) out[q] = static_cast<decltype(sample)>(get(answers[q]));
            put(part, made);
        };
        std::vector<double> lost(count);  // what rounding took of each row's numbers
        const auto bounded = [&](Part part, const auto& get) {
            auto [made, out] = fresh<T>(count);
            for (int64_t q = 0; q < count; ++q) out[q] = rounded<T>(get(answers[q]), &lost[q]);
            put(part, made);
        };
        double extra = 0;  // of the error, times 1 + |lse|
        if (call.verb == Verb::best) {
            const int64_t k = call.question.k;
            auto [log_probs, log_prob] = fresh<T>(count, k);
            auto [ids, id] = fresh<int64_t>(count, k);
            auto [logits, logit] = fresh<double>(count, k);  // exact: rounded, they would tie
            for (int64_t q = 0; q < count; ++q) {
                const Answer& a = answers[q];
                const auto there = static_cast<int64_t>(a.best.size());
                const double none = std::isnan(a.lse) ? a.lse : -kInf;
                for (int64_t i = 0; i < k; ++i) {
                    const int64_t at = q * k + i;
                    const double z = i < there ? a.best[i].z : -kInf;
                    id[at] = i < there ? a.best[i].id : -1;
                    logit[at] = z;
                    log_prob[at] = rounded<T>(i < there ? headlong::log_prob_of(e, a, z) : none, &lost[q]);
                }
            }
            put(Part::ids, ids), put(Part::logits, logits), put(Part::log_probs, log_probs);
            each(Part::proved, npy_bool{}, [](const Answer& a) { return a.proved; });
        } else if (call.verb == Verb::given) {
            auto [log_probs, log_prob] = fresh<T>(count, call.m);
            const Question& q = call.question;
            const auto left = [&](int64_t i) { return q.mask == nullptr || q.mask[(q.mask_per_row ? i / call.m * e.vocab : 0) + call.ids[i]] != 0; };
            for (int64_t i = 0; i < count * call.m; ++i)
                log_prob[i] = !call.told ? std::numeric_limits<T>::quiet_NaN()
                              : left(i)  ? rounded<T>(call.exponents[i] - answers[i / call.m].lse, &lost[i / call.m])
                                         : -std::numeric_limits<T>::infinity();
            put(Part::logits, call.logits), put(Part::log_probs, log_probs);
        } else if (call.verb == Verb::draw) {
            const int64_t n = call.rules.front().n;
            auto [ids, id] = fresh<int64_t>(count, n);
            auto [logits, logit] = fresh<double>(count, n);
            auto [scores, score] = fresh<double>(count, n);
            auto [proofs, proved] = fresh<npy_bool>(count, n);
            for (int64_t i = 0; i < count * n; ++i) {
                id[i] = call.draws[i].id;
                logit[i] = call.draws[i].z;
                score[i] = call.draws[i].score;
                proved[i] = call.draws[i].proved;
            }
            put(Part::ids, ids), put(Part::logits, logits), put(Part::score, scores), put(Part::proved, proofs);
            if (std::isfinite(call.question.eps)) {
                auto [log_probs, log_prob] = fresh<T>(count, n);
                for (int64_t i = 0; i < count * n; ++i) {
                    const double temperature = call.rules[call.rules.size() > 1 ? i / n : 0].temperature;
                    log_prob[i] = rounded<T>(call.draws[i].id < 0 ? -kInf : e.linked(call.draws[i].z) / temperature - answers[i / n].lse, &lost[i / n]);
                }
                put(Part::log_probs, log_probs);
                bounded(Part::kept, [](const Answer& a) { return a.kept; });
                extra = static_cast<double>(e.vocab + 8) * 0x1p-53;
            }
        } else if (call.verb == Verb::functional) {
            bounded(Part::value, [](const Answer& a) { return a.value; });
        }
        if (call.verb != Verb::draw || std::isfinite(call.question.eps)) {
            if (call.verb != Verb::draw || call.checked) bounded(Part::lse, [](const Answer& a) { return a.lse; });
            auto [errors, error] = fresh<T>(count);
            for (int64_t q = 0; q < count; ++q) error[q] = rounded_up<T>(answers[q].error + extra * (extra > 0 ? 1 + std::fabs(answers[q].lse) : 0) + lost[q]);
            put(Part::error, errors);
        }
        each(Part::rows, int64_t{}, [&](const Answer& a) { return a.rows + call.m; });
        each(Part::bytes, double{}, [&](const Answer& a) { return a.bytes + static_cast<double>(call.m) * e.row_bytes(); });
        each(Part::full, npy_bool{}, [](const Answer& a) { return a.dense; });
        const bool few = std::any_of(answers.begin(), answers.end(), [](const Answer& a) { return a.few; });
        const nb::object& path = few ? few_path_ : path_;
        put(Part::path, path);
        const auto part = [&](Part which) { return parts[static_cast<size_t>(which)]; };
        if (!call.checked) put(Part::cost, made_of(records_.cost, part(Part::rows), part(Part::bytes), part(Part::full), path));
        if (call.checked)
            for (nb::object& one : parts)
                if (!one.is_valid()) one = fresh<double>(0).first;
        return filled(view, parts);
    }

    template <typename Parts>
    static nb::object filled(const View& view, const Parts& parts) {
        static const auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(&PyBaseObject_Type, Py_tp_alloc));
        static const auto allocate_tuple = reinterpret_cast<allocfunc>(PyType_GetSlot(&PyTuple_Type, Py_tp_alloc));
        auto* type = reinterpret_cast<PyTypeObject*>(view.type.ptr());
        nb::object record = nb::steal(view.is_tuple ? allocate_tuple(type, static_cast<Py_ssize_t>(view.parts.size())) : allocate(type, 0));
        if (!record.is_valid()) throw nb::python_error();
        if (view.is_tuple) {
            for (size_t at = 0; at < view.parts.size(); ++at)
                PyTuple_SetItem(record.ptr(), static_cast<Py_ssize_t>(at), nb::object(parts[static_cast<size_t>(view.parts[at])]).release().ptr());
            return record;
        }
        for (size_t at = 0; at < view.parts.size(); ++at) {
            const nb::object& part = parts[static_cast<size_t>(view.parts[at])];
            if (PyObject_GenericSetAttr(record.ptr(), nb::object(view.fields[at]).ptr(), part.is_valid() ? part.ptr() : Py_None) != 0) throw nb::python_error();
        }
        return record;
    }

    nb::tuple kept_;
    const Records& records_;
    Reader reader_;
    nb::object path_, few_path_, link_;
    double eps_ = kInf, delta_ = 0;
    uint64_t seed_ = 0;
    int threads_ = 0;
    bool estimates_ = false;
};

int load_numpy() {
    import_array1(-1);
    return 0;
}

}  // namespace

void bind_reader(nb::module_& m) {
    if (load_numpy() != 0) throw nb::python_error();
    const auto names = [](const auto& fields) { return std::vector<std::string>(std::begin(fields), std::end(fields)); };
    m.def("question_fields", [=] { return std::make_pair(names(kQuestionFields), names(kFilterFields)); });
    nb::class_<Records>(m, "Records")
        .def(nb::init<nb::tuple, nb::object, nb::object, nb::dict, nb::object, nb::object>(), nb::arg("views"), nb::arg("cost"), nb::arg("bfloat16"),
             nb::arg("ranges"), nb::arg("as_numpy"), nb::arg("like"));
    nb::class_<BoundReader>(m, "Reader")
        .def(nb::init<nb::object, nb::object, nb::object, nb::object, std::tuple<int64_t, int64_t, int64_t, bool>, bool, nb::tuple>(), nb::arg("records"),
             nb::arg("executor"), nb::arg("codes").none(), nb::arg("blocks").none(), nb::arg("limits"), nb::arg("every"), nb::arg("about"))
        .def("ask", &BoundReader::ask, nb::arg("hidden").none(), nb::arg("question"), nb::arg("view"))
        .def_prop_ro("isa", &BoundReader::isa)
        .def_prop_ro("capsule", &BoundReader::capsule)
        .def_prop_ro("estimates", &BoundReader::estimates);
}

}  // namespace headlong
