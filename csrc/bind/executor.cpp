// The Python face of the executor: checks once what kernels and resolvers take for granted, lets go of the
// interpreter's lock, and hands NumPy arrays back.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "bind/arguments.h"
#include "bind/link.h"
#include "bind/without_gil.h"
#include "executor/executor.h"
#include "executor/verbs.h"
#include "runtime/pool.h"

namespace headlong {
namespace {

template <typename T>
nb::object column(const std::vector<Answer>& answers, T Answer::* member) {
    std::vector<T> values;
    for (const Answer& a : answers) values.push_back(a.*member);
    return owned(std::move(values), {answers.size()});
}

nb::object flags(const std::vector<Answer>& answers, bool Answer::* member) {
    std::vector<uint8_t> values;
    for (const Answer& a : answers) values.push_back(a.*member);
    return owned_flags(std::move(values), {answers.size()});
}

class BoundExecutor {
  public:
    // preview: (rotation [dim, width], columns [vocab, width], base [padded], rows that are scored), or None
    BoundExecutor(AnyArray weight, const std::string& kind, std::optional<Floats> bias, Floats norms, nb::tuple link, std::optional<nb::tuple> preview,
                  const std::string& isa) {
        Executor& e = executor_;
        e.kernels = kernels_for(isa.c_str());
        check(e.kernels != nullptr, "this CPU does not have that instruction set");
        const StoredRows rows = rows_of(weight, kind);
        e.weight = rows.data, e.kind = rows.kind, e.vocab = rows.vocab, e.dim = rows.dim;
        check(e.vocab > 0 && e.dim > 0, "a layer has at least one class and one coordinate");
        check(e.vocab < (int64_t{1} << 31) - kBlock, "a layer has fewer than 2^31 classes");
        e.padded = in_blocks(e.vocab);
        keep(weight);
        check(static_cast<int64_t>(norms.size()) == e.vocab, "norms must be [vocab]");
        for (int64_t i = 0; i < e.vocab; ++i) {
            check(std::isfinite(norms.data()[i]), "a row of the weight is not finite");
            e.most_norm = std::max(e.most_norm, static_cast<double>(norms.data()[i]));
        }
        e.norms = padded(norms.data(), [](float x) { return x; });
        if (bias) {
            check(static_cast<int64_t>(bias->size()) == e.vocab, "bias must be [vocab]");
            e.bias = bias->data();
            e.base = padded(e.bias, [](float x) { return x; });
            e.bias_sizes = padded(e.bias, [](float x) { return std::fabs(x); });
            keep(*bias);
        }
        set_link(link, e, kept_, arrays_);
        if (preview) set_preview(*preview);
    }

    nb::object topk(Doubles hidden, int64_t k, double eps, std::optional<Bytes> mask, int threads, double delta,
                   uint64_t seed) const {
        const int64_t batch = batch_of(hidden);
        check(k >= 1 && k <= executor_.vocab, "k must be in 1..vocab");
        Question question = ask(mask, batch, eps, threads, delta, seed);
        question.k = k;
        std::vector<Answer> answers;
        unlocked([&] { answers = headlong::ask(executor_, hidden.data(), batch, question); });
        return topk_arrays(executor_, answers, k);
    }

    nb::object lse(Doubles hidden, double eps, std::optional<Bytes> mask, int threads, double delta,
                  uint64_t seed) const {
        const int64_t batch = batch_of(hidden);
        Question question = ask(mask, batch, eps, threads, delta, seed);
        std::vector<Answer> answers;
        unlocked([&] { answers = headlong::ask(executor_, hidden.data(), batch, question); });
        return named("FoundLse", column<double>(answers, &Answer::lse), column<double>(answers, &Answer::error), column<int64_t>(answers, &Answer::rows),
                     column<double>(answers, &Answer::bytes), flags(answers, &Answer::dense));
    }

    // By a full scan.
    nb::object entropy(Doubles hidden, std::optional<Bytes> mask, int threads) const {
        const int64_t batch = batch_of(hidden);
        Question question = ask(mask, batch, 1, threads, 0, 0);
        question.entropy = true;
        std::vector<Answer> answers(batch);
        std::vector<int64_t> rows(batch);
        std::iota(rows.begin(), rows.end(), 0);
        for (Answer& answer : answers) answer.dense = true;
        unlocked([&] { finish(executor_, hidden.data(), rows, question, answers); });
        return entropy_arrays(answers);
    }

    nb::object logits(Doubles hidden, Ids ids, int threads) const {
        const int64_t batch = batch_of(hidden);
        check(ids.ndim() == 2 && static_cast<int64_t>(ids.shape(0)) == batch, "ids must be [batch, m]");
        const int64_t m = static_cast<int64_t>(ids.shape(1));
        for (int64_t i = 0; i < batch * m; ++i)
            check(ids.data()[i] >= 0 && ids.data()[i] < executor_.vocab, "an id is out of range");
        std::vector<double> out(batch * m);
        unlocked([&] { headlong::logits(executor_, hidden.data(), batch, ids.data(), m, thread_count(threads), out.data()); });
        return owned(std::move(out), {static_cast<size_t>(batch), static_cast<size_t>(m)});
    }

    nb::object sample(Doubles hidden, int n, double temperature, int64_t top_k, double top_p, double min_p, uint64_t seed,
                     uint64_t row0, std::optional<Bytes> mask, int threads, int64_t class0, double delta,
                     uint64_t chance) const {
        const int64_t batch = batch_of(hidden);
        const SampleRule rule = checked(SampleRule{n, temperature, top_k, top_p, min_p, seed, row0, class0});
        const Question question = ask(mask, batch, kInf, threads, delta, chance);
        std::vector<Answer> answers;
        std::vector<Draw> draws;
        unlocked([&] { answers = headlong::sample(executor_, hidden.data(), batch, rule, question, &draws); });
        return sample_arrays(answers, draws, n);
    }

    std::string isa() const { return executor_.kernels->isa; }
    nb::capsule capsule() const { return nb::capsule(&executor_, kExecutorCapsule); }

  private:
    template <typename A>
    void keep(const A& array) {
        kept_.push_back(nb::cast(array));
    }

    // Numbers of every class, made up to whole blocks by zeros.
    template <typename Make>
    const float* padded(const float* values, const Make& make) {
        arrays_.emplace_back(executor_.padded, 0.f);
        std::transform(values, values + executor_.vocab, arrays_.back().begin(), make);
        return arrays_.back().data();
    }

    void set_preview(const nb::tuple& preview) {
        check(nb::len(preview) == 4, "a preview is (rotation, columns, base, rows)");
        const auto rotation = nb::cast<AnyArray>(preview[0]);
        const auto columns = nb::cast<Floats>(preview[1]), base = nb::cast<Floats>(preview[2]);
        Preview& to = executor_.preview;
        to.budget = nb::cast<int64_t>(preview[3]);
        check(to.budget > 0, "a preview scores some rows");
        check(rotation.ndim() == 2 && static_cast<int64_t>(rotation.shape(0)) == executor_.dim && (rotation.itemsize() == 2 || rotation.itemsize() == 4),
              "rotation must be [dim, width] float16 or float32");
        to.width = static_cast<int64_t>(rotation.shape(1));
        check(columns.ndim() == 2 && static_cast<int64_t>(columns.shape(0)) == executor_.vocab && static_cast<int64_t>(columns.shape(1)) == to.width,
              "columns must be [vocab, width]");
        check(static_cast<int64_t>(base.size()) == executor_.padded, "base must be [padded vocab]");
        to.rotation = rotation.data(), to.rotation_kind = rotation.itemsize() == 2 ? Kind::f16 : Kind::f32;
        to.columns = columns.data(), to.base = base.data();
        keep(rotation), keep(columns), keep(base);
    }

    int64_t batch_of(const Doubles& hidden) const {
        check(hidden.ndim() == 2 && static_cast<int64_t>(hidden.shape(1)) == executor_.dim, "hidden must be [batch, dim]");
        return static_cast<int64_t>(hidden.shape(0));
    }

    Question ask(const std::optional<Bytes>& mask, int64_t batch, double eps, int threads, double delta,
                 uint64_t seed) const {
        check(eps > 0 && delta >= 0 && delta < 1, "eps > 0, 0 <= delta < 1");
        Question question;
        question.eps = eps;
        question.delta = delta;
        question.seed = seed;
        question.threads = thread_count(threads);
        if (mask) {
            check(mask->ndim() == 2 && static_cast<int64_t>(mask->shape(1)) == executor_.vocab &&
                      (mask->shape(0) == 1 || static_cast<int64_t>(mask->shape(0)) == batch),
                  "mask must be [1 or batch, vocab]");
            question.mask = mask->data();
            question.mask_per_row = mask->shape(0) != 1;
        }
        return question;
    }

    Executor executor_;
    std::vector<nb::object> kept_;
    std::vector<std::vector<float>> arrays_;
};

}  // namespace

nb::object topk_arrays(const Executor& executor, const std::vector<Answer>& answers, int64_t k) {
    const size_t n = answers.size(), wide = static_cast<size_t>(k);
    std::vector<double> logits(n * wide, -kInf), log_probs(n * wide, -kInf);
    std::vector<int64_t> ids(n * wide, -1);
    for (size_t q = 0; q < n; ++q) {
        const Answer& a = answers[q];
        for (size_t i = 0; i < a.best.size(); ++i) {
            ids[q * wide + i] = a.best[i].id;
            logits[q * wide + i] = a.best[i].z;
            log_probs[q * wide + i] = std::isnan(a.lse) ? a.lse : executor.linked(a.best[i].z) - a.lse;
        }
    }
    return named("FoundTopK", owned(std::move(logits), {n, wide}), owned(std::move(ids), {n, wide}), owned(std::move(log_probs), {n, wide}),
                 column<double>(answers, &Answer::lse), column<double>(answers, &Answer::error), flags(answers, &Answer::proved),
                 column<int64_t>(answers, &Answer::rows), column<double>(answers, &Answer::bytes), flags(answers, &Answer::dense));
}

SampleRule checked(const SampleRule& rule) {
    check(rule.n >= 1 && rule.temperature > 0 && rule.top_k >= 0 && rule.top_p > 0 && rule.top_p <= 1 && rule.min_p >= 0 && rule.min_p <= 1,
          "n >= 1, temperature > 0, top_k >= 0, 0 < top_p <= 1, 0 <= min_p <= 1");
    check(rule.class0 >= 0, "class0 >= 0");
    return rule;
}

nb::object entropy_arrays(const std::vector<Answer>& answers) {
    return named("FoundEntropy", column<double>(answers, &Answer::entropy), column<double>(answers, &Answer::error), column<double>(answers, &Answer::lse),
                 column<int64_t>(answers, &Answer::rows), column<double>(answers, &Answer::bytes), flags(answers, &Answer::dense));
}

nb::object sample_arrays(const std::vector<Answer>& answers, const std::vector<Draw>& draws, int64_t n) {
    std::vector<int64_t> ids;
    std::vector<double> z, score;
    std::vector<uint8_t> proved;
    for (const Draw& d : draws) {
        ids.push_back(d.id);
        z.push_back(d.z);
        score.push_back(d.score);
        proved.push_back(d.proved);
    }
    const size_t B = answers.size(), N = static_cast<size_t>(n);
    return named("FoundDraws", owned(std::move(ids), {B, N}), owned(std::move(z), {B, N}), owned(std::move(score), {B, N}),
                 owned_flags(std::move(proved), {B, N}), column<int64_t>(answers, &Answer::rows), column<double>(answers, &Answer::bytes),
                 flags(answers, &Answer::dense));
}

void bind_executor(nb::module_& m) {
    nb::class_<BoundExecutor>(m, "Executor")
        .def(nb::init<AnyArray, const std::string&, std::optional<Floats>, Floats, nb::tuple, std::optional<nb::tuple>, const std::string&>(), nb::arg("weight"),
             nb::arg("kind"), nb::arg("bias").none(), nb::arg("norms"), nb::arg("link"), nb::arg("preview").none(), nb::arg("isa"))
        .def("topk", &BoundExecutor::topk, nb::arg("hidden"), nb::arg("k"), nb::arg("eps"), nb::arg("mask").none(), nb::arg("threads") = 0,
             nb::arg("delta") = 0.0, nb::arg("seed") = 0)
        .def("lse", &BoundExecutor::lse, nb::arg("hidden"), nb::arg("eps"), nb::arg("mask").none(), nb::arg("threads") = 0, nb::arg("delta") = 0.0,
             nb::arg("seed") = 0)
        .def("entropy", &BoundExecutor::entropy, nb::arg("hidden"), nb::arg("mask").none(), nb::arg("threads") = 0)
        .def("logits", &BoundExecutor::logits, nb::arg("hidden"), nb::arg("ids"), nb::arg("threads") = 0)
        .def("sample", &BoundExecutor::sample, nb::arg("hidden"), nb::arg("n"), nb::arg("temperature"), nb::arg("top_k"), nb::arg("top_p"),
             nb::arg("min_p"), nb::arg("seed"), nb::arg("row0"), nb::arg("mask").none(), nb::arg("threads") = 0, nb::arg("class0") = 0,
             nb::arg("delta") = 0.0, nb::arg("chance") = 0)
        .def_prop_ro("isa", &BoundExecutor::isa)
        .def_prop_ro("capsule", &BoundExecutor::capsule);
}

}  // namespace headlong
