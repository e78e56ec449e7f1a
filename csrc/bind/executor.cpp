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
    BoundExecutor(AnyArray weight, const std::string& kind, std::optional<Floats> bias, Floats norms, nb::tuple link,
                  std::optional<AnyArray> rotation, std::optional<Doubles> centre,
                  std::optional<Floats> base, nb::sequence levels, int64_t budget, double share,
                  double code_product, const std::string& isa) {
        Executor& e = executor_;
        e.kernels = kernels_for(isa.c_str());
        check(e.kernels != nullptr, "this CPU does not have that instruction set");
        const StoredRows rows = rows_of(weight, kind);
        e.weight = rows.data, e.kind = rows.kind, e.vocab = rows.vocab, e.dim = rows.dim;
        check(e.vocab > 0 && e.dim > 0, "a layer has at least one class and one coordinate");
        check(e.vocab < (int64_t{1} << 31) - kBlock, "a layer has fewer than 2^31 classes");
        e.padded = in_blocks(e.vocab);
        e.budget = budget;
        e.share = share;
        e.code_product = code_product;
        keep(weight);
        if (bias) {
            check(static_cast<int64_t>(bias->size()) == e.vocab, "bias must be [vocab]");
            e.bias = bias->data();
            keep(*bias);
        }
        check(static_cast<int64_t>(norms.size()) == e.vocab, "norms must be [vocab]");
        set_link(link, e, kept_, arrays_);
        set_dense(norms);
        if (nb::len(levels) == 0) return;
        e.has_preview = true;
        int64_t width = e.dim;
        if (rotation) {
            check(rotation->ndim() == 2 && static_cast<int64_t>(rotation->shape(0)) == e.dim, "rotation must be [dim, rotated]");
            check(rotation->itemsize() == 2 || rotation->itemsize() == 4, "rotation must be float16 or float32");
            e.rotated_dim = width = static_cast<int64_t>(rotation->shape(1));
            e.rotation.assign(rotation->data(), rotation->itemsize() == 2 ? Kind::f16 : Kind::f32, e.dim, width);
        }
        if (centre) {
            check(static_cast<int64_t>(centre->size()) == e.dim, "centre must be [dim]");
            e.centre = centre->data();
            keep(*centre);
        }
        check(base.has_value() && static_cast<int64_t>(base->size()) == e.padded, "base must be [padded vocab]");
        e.preview.base = base->data();
        e.preview.rotated = true;
        keep(*base);
        set_level(nb::cast<nb::sequence>(levels[0]), width);
        check(nb::len(levels) == 1, "there is one level");
    }

    nb::tuple topk(Doubles hidden, int64_t k, double eps, std::optional<Bytes> mask, bool dense, int threads, double delta,
                   uint64_t seed) const {
        const int64_t batch = batch_of(hidden);
        check(k >= 1 && k <= executor_.vocab, "k must be in 1..vocab");
        Question question = ask(mask, batch, eps, threads, delta, seed);
        question.k = k;
        std::vector<Answer> answers;
        unlocked([&] { answers = headlong::ask(executor_, hidden.data(), batch, question, dense); });
        return topk_arrays(executor_, answers, k);
    }

    nb::tuple lse(Doubles hidden, double eps, std::optional<Bytes> mask, bool dense, int threads, double delta,
                  uint64_t seed) const {
        const int64_t batch = batch_of(hidden);
        Question question = ask(mask, batch, eps, threads, delta, seed);
        std::vector<Answer> answers;
        unlocked([&] { answers = headlong::ask(executor_, hidden.data(), batch, question, dense); });
        return nb::make_tuple(column<double>(answers, &Answer::lse), column<double>(answers, &Answer::error),
                              column<int64_t>(answers, &Answer::rows), column<double>(answers, &Answer::bytes),
                              flags(answers, &Answer::dense));
    }

    // By a full scan.
    nb::tuple entropy(Doubles hidden, std::optional<Bytes> mask, int threads) const {
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

    nb::tuple sample(Doubles hidden, int n, double temperature, int64_t top_k, double top_p, double min_p, uint64_t seed,
                     uint64_t row0, std::optional<Bytes> mask, bool dense, int threads, int64_t class0, double delta,
                     uint64_t chance) const {
        const int64_t batch = batch_of(hidden);
        const SampleRule rule = checked(SampleRule{n, temperature, top_k, top_p, min_p, seed, row0, class0});
        const Question question = ask(mask, batch, kInf, threads, delta, chance);
        std::vector<Answer> answers;
        std::vector<Draw> draws;
        unlocked([&] { answers = headlong::sample(executor_, hidden.data(), batch, rule, question, dense, &draws); });
        return sample_arrays(answers, draws, n);
    }

    std::string isa() const { return executor_.kernels->isa; }
    nb::capsule capsule() const { return nb::capsule(&executor_, kExecutorCapsule); }

  private:
    template <typename A>
    void keep(const A& array) {
        kept_.push_back(nb::cast(array));
    }

    // The dense rows as a source: float32 dot products, off by a rounding for every 16th or 128th coordinate.
    void set_dense(const Floats& norms) {
        Executor& e = executor_;
        for (int64_t i = 0; i < e.vocab; ++i) {
            check(std::isfinite(norms.data()[i]), "a row of the weight is not finite");
            e.most_norm = std::max(e.most_norm, static_cast<double>(norms.data()[i]));
        }
        arrays_.emplace_back(e.padded, 0.f);
        std::copy(norms.data(), norms.data() + e.vocab, arrays_.back().begin());
        const float* slack = arrays_.back().data();
        arrays_.emplace_back(e.padded, 0.f);
        if (e.bias != nullptr) std::copy(e.bias, e.bias + e.vocab, arrays_.back().begin());
        e.dense.base = arrays_.back().data();
        e.dense.rows = e.weight;
        e.dense.kind = e.kind;
        e.dense.width = e.dim;
        e.dense.slack = {Slack{slack}};
        e.dense.terms = {{TermKind::norm, 0, e.dim, (static_cast<double>(e.dim) / 16 + 144) * 0x1p-24, 0}};
        if (e.bias != nullptr) {
            arrays_.emplace_back(e.padded, 0.f);
            for (int64_t i = 0; i < e.vocab; ++i) arrays_.back()[i] = std::fabs(e.bias[i]);
            e.dense.slack.push_back({arrays_.back().data()});
            e.dense.terms.push_back({TermKind::one, 0, 0, 0x1p-22, 1});
        }
        e.dense.bytes = static_cast<double>(e.vocab) * e.row_bytes() +
                        static_cast<double>(e.padded) * 4 * (1 + e.dense.slack.size());
    }

    void set_level(const nb::sequence& level, int64_t width) {
        check(nb::len(level) == 5, "a level is (codes, layout, scale, slack, terms)");
        Executor& e = executor_;
        Source& to = e.preview;
        const nb::sequence layout = nb::cast<nb::sequence>(level[1]);
        AnyArray codes = nb::cast<AnyArray>(level[0]);
        keep(codes);
        int64_t words = 0;
        for (nb::handle item : layout) {
            const auto [start, stop] = nb::cast<std::tuple<int64_t, int64_t>>(item);
            check(0 <= start && start < stop && stop <= width && stop - start <= 65536, "a segment has 1 to 65536 coordinates of x");
            to.segments.push_back({start, stop, (stop - start + 3) / 4, words});
            words += to.segments.back().words;
        }
        check(!to.segments.empty(), "a level reads at least one segment");
        if (codes.ndim() == 4) {
            to.six_bits = words % 4 == 0 && static_cast<int64_t>(codes.shape(1)) == words / 4 * 3;
            check(codes.itemsize() == 1 && static_cast<int64_t>(codes.shape(0)) == e.padded / kBlock &&
                      (static_cast<int64_t>(codes.shape(1)) == words || to.six_bits) && codes.shape(2) == 64 && codes.shape(3) == 4,
                  "codes must be [blocks, words, 64, 4] uint8, or three of four words");
            to.codes = static_cast<const uint8_t*>(codes.data());
            to.words = words;
            const Floats scale = nb::cast<Floats>(level[2]);
            check(scale.ndim() == 2 && scale.shape(0) == to.segments.size() && static_cast<int64_t>(scale.shape(1)) == e.padded,
                  "scale must be [segments, padded vocab]");
            to.scale = scale.data();
            keep(scale);
            if (e.kernels->summed) to.sums = code_sums(*e.kernels, to, e.padded);
            to.bytes = static_cast<double>(codes.nbytes()) + static_cast<double>(scale.nbytes()) + static_cast<double>(to.sums.size() * 4);
        } else {
            check(codes.ndim() == 2 && codes.dtype() == nb::dtype<float>() && to.segments.size() == 1 &&
                      to.segments[0].start == 0 && static_cast<int64_t>(codes.shape(0)) == e.vocab &&
                      static_cast<int64_t>(codes.shape(1)) == to.segments[0].stop,
                  "a matrix level is [vocab, width] float32 over the first width coordinates");
            to.rows = codes.data();
            to.kind = Kind::f32;
            to.width = to.segments[0].stop;
            to.bytes = static_cast<double>(codes.nbytes());
        }
        to.bytes += set_slack(level, width, to.slack, to.terms);
        check(!to.terms.empty() || e.budget > 0, "a level without a radius needs a budget");
        to.bytes += static_cast<double>(e.padded) * 4 + static_cast<double>(e.rotation.tiles.size());
    }

    // Reads a level's slack and terms; returns the bytes of the slack.
    double set_slack(const nb::sequence& level, int64_t width, std::vector<Slack>& slack_rows,
                     std::vector<Term>& terms) {
        if (level[3].is_none()) return 0;
        Floats slack = nb::cast<Floats>(level[3]);
        check(slack.ndim() == 2 && slack.shape(0) <= kMaxTerms && static_cast<int64_t>(slack.shape(1)) == executor_.padded,
              "slack must be [rows, padded vocab], at most 8 rows");
        keep(slack);
        const int64_t rows = static_cast<int64_t>(slack.shape(0));
        for (int64_t r = 0; r < rows; ++r) slack_rows.push_back({slack.data() + r * executor_.padded});
        for (nb::handle item : nb::cast<nb::sequence>(level[4])) {
            const nb::sequence term = nb::cast<nb::sequence>(item);
            const auto name = nb::cast<std::string>(term[0]);
            const auto start = nb::cast<int64_t>(term[1]), stop = nb::cast<int64_t>(term[2]);
            const auto factor = nb::cast<double>(term[3]);
            const int64_t named = nb::len(term) > 4 ? nb::cast<int64_t>(term[4]) : -1;
            const int64_t row = named < 0 ? static_cast<int64_t>(terms.size()) : named;
            check(name == "one" || (0 <= start && start <= stop && stop <= width), "a term lies outside the coordinates");
            check(0 <= row && row < rows, "a term names a row of the slack that is not there");
            const double together = nb::len(term) > 5 ? nb::cast<double>(term[5]) : 0;
            check(together >= 0 && std::isfinite(together), "how far errors are off together is a length");
            terms.push_back({enum_of<TermKind>(name, kTermKinds, "a term is norm, quantised, rest, peaks or one"), start, stop, factor, static_cast<int>(row), together});
        }
        return static_cast<double>(slack.nbytes());
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

nb::tuple topk_arrays(const Executor& executor, const std::vector<Answer>& answers, int64_t k) {
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
    return nb::make_tuple(owned(std::move(logits), {n, wide}), owned(std::move(ids), {n, wide}), owned(std::move(log_probs), {n, wide}),
                          column<double>(answers, &Answer::lse), column<double>(answers, &Answer::error), flags(answers, &Answer::proved),
                          column<int64_t>(answers, &Answer::rows), column<double>(answers, &Answer::bytes), flags(answers, &Answer::dense));
}

SampleRule checked(const SampleRule& rule) {
    check(rule.n >= 1 && rule.temperature > 0 && rule.top_k >= 0 && rule.top_p > 0 && rule.top_p <= 1 && rule.min_p >= 0 && rule.min_p <= 1,
          "n >= 1, temperature > 0, top_k >= 0, 0 < top_p <= 1, 0 <= min_p <= 1");
    check(rule.class0 >= 0, "class0 >= 0");
    return rule;
}

nb::tuple entropy_arrays(const std::vector<Answer>& answers) {
    return nb::make_tuple(column<double>(answers, &Answer::entropy), column<double>(answers, &Answer::error), column<double>(answers, &Answer::lse),
                          column<int64_t>(answers, &Answer::rows), column<double>(answers, &Answer::bytes), flags(answers, &Answer::dense));
}

nb::tuple sample_arrays(const std::vector<Answer>& answers, const std::vector<Draw>& draws, int64_t n) {
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
    return nb::make_tuple(owned(std::move(ids), {B, N}), owned(std::move(z), {B, N}), owned(std::move(score), {B, N}),
                          owned_flags(std::move(proved), {B, N}), column<int64_t>(answers, &Answer::rows),
                          column<double>(answers, &Answer::bytes), flags(answers, &Answer::dense));
}

void bind_executor(nb::module_& m) {
    nb::class_<BoundExecutor>(m, "Executor")
        .def(nb::init<AnyArray, const std::string&, std::optional<Floats>, Floats, nb::tuple, std::optional<AnyArray>,
                      std::optional<Doubles>, std::optional<Floats>, nb::sequence, int64_t,
                      double, double, const std::string&>(),
             nb::arg("weight"), nb::arg("kind"), nb::arg("bias").none(), nb::arg("norms"), nb::arg("link"),
             nb::arg("rotation").none(), nb::arg("centre").none(), nb::arg("base").none(),
             nb::arg("levels"), nb::arg("budget"), nb::arg("share"), nb::arg("code_product"),
             nb::arg("isa"))
        .def("topk", &BoundExecutor::topk, nb::arg("hidden"), nb::arg("k"), nb::arg("eps"), nb::arg("mask").none(),
             nb::arg("dense") = false, nb::arg("threads") = 0, nb::arg("delta") = 0.0, nb::arg("seed") = 0)
        .def("lse", &BoundExecutor::lse, nb::arg("hidden"), nb::arg("eps"), nb::arg("mask").none(),
             nb::arg("dense") = false, nb::arg("threads") = 0, nb::arg("delta") = 0.0, nb::arg("seed") = 0)
        .def("entropy", &BoundExecutor::entropy, nb::arg("hidden"), nb::arg("mask").none(), nb::arg("threads") = 0)
        .def("logits", &BoundExecutor::logits, nb::arg("hidden"), nb::arg("ids"), nb::arg("threads") = 0)
        .def("sample", &BoundExecutor::sample, nb::arg("hidden"), nb::arg("n"), nb::arg("temperature"), nb::arg("top_k"),
             nb::arg("top_p"), nb::arg("min_p"), nb::arg("seed"), nb::arg("row0"), nb::arg("mask").none(),
             nb::arg("dense") = false, nb::arg("threads") = 0, nb::arg("class0") = 0,
             nb::arg("delta") = 0.0, nb::arg("chance") = 0)
        .def_prop_ro("isa", &BoundExecutor::isa)
        .def_prop_ro("capsule", &BoundExecutor::capsule);
}

}  // namespace headlong
