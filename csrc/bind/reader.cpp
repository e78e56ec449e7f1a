// The Python face of a reader: lets go of the interpreter's lock, and hands NumPy arrays back.
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "bind/arguments.h"
#include "bind/without_gil.h"
#include "reader/reader.h"
#include "runtime/pool.h"

namespace headlong {
namespace {

class BoundReader {
  public:
    // executor, codes, blocks: objects with capsules, over the same rows, or None; of blocks the largest batch, the largest k for such
    // batches and for others, and whether they find samples; every: see reader/reader.h.
    BoundReader(nb::object executor, nb::object codes, nb::object blocks, std::tuple<int64_t, int64_t, int64_t, bool> asked, bool every)
        : kept_(nb::make_tuple(executor, codes, blocks)) {
        Reader& r = reader_;
        r.executor = held<Executor>(executor, kExecutorCapsule);
        check(r.executor != nullptr, "an executor");
        r.codes = held<Codes>(codes, kCodesCapsule);
        r.blocks = held<Blocks>(blocks, kBlocksCapsule);
        check(r.codes == nullptr || (r.codes->rows->vocab == r.executor->vocab && r.codes->rows->dim == r.executor->dim), "codes of the same layer");
        check(r.blocks == nullptr || (r.blocks->vocab == r.executor->vocab && r.blocks->dim == r.executor->dim), "blocks of the same layer");
        std::tie(r.max_batch, r.max_k, r.max_k_of_batches, r.samples) = asked;
        r.samples = r.samples && r.executor->link.form == LinkForm::affine;
        r.every = every;
    }

    nb::object topk(Doubles hidden, int64_t k, double eps, std::optional<Bytes> mask, int threads, double delta, uint64_t seed) const {
        check(k >= 1 && k <= reader_.executor->vocab, "k must be in 1..vocab");
        Question question = asked(hidden, eps, mask, threads, delta, seed);
        question.k = k;
        const std::vector<Answer> answers = unlocked([&] { return reader_.topk(hidden.data(), batch_of(hidden, reader_.executor->dim), question); });
        const size_t n = answers.size(), wide = static_cast<size_t>(k);
        std::vector<double> log_probs(n * wide, -kInf);
        for (size_t q = 0; q < n; ++q)
            for (size_t i = 0; i < std::min(wide, answers[q].best.size()); ++i)
                log_probs[q * wide + i] = log_prob_of(*reader_.executor, answers[q], answers[q].best[i].z);
        const auto [ids, logits] = best_columns(answers, k);
        return named("FoundTopK", logits, ids, owned(std::move(log_probs), {n, wide}), column(answers, &Answer::lse), column(answers, &Answer::error),
                     column(answers, &Answer::proved), column(answers, &Answer::rows), column(answers, &Answer::bytes), column(answers, &Answer::dense));
    }

    nb::object lse(Doubles hidden, double eps, std::optional<Bytes> mask, int threads, double delta, uint64_t seed) const {
        const Question question = asked(hidden, eps, mask, threads, delta, seed);
        const std::vector<Answer> answers = unlocked([&] { return reader_.lse(hidden.data(), batch_of(hidden, reader_.executor->dim), question); });
        return named("FoundLse", column(answers, &Answer::lse), column(answers, &Answer::error), column(answers, &Answer::rows),
                     column(answers, &Answer::bytes), column(answers, &Answer::dense));
    }

    nb::object entropy(Doubles hidden, double eps, std::optional<Bytes> mask, int threads, double delta, uint64_t seed) const {
        check(std::isfinite(eps), "an entropy has a bound");
        const Question question = asked(hidden, eps, mask, threads, delta, seed);
        const std::vector<Answer> answers = unlocked([&] { return reader_.entropy(hidden.data(), batch_of(hidden, reader_.executor->dim), question); });
        return named("FoundEntropy", column(answers, &Answer::entropy), column(answers, &Answer::error), column(answers, &Answer::lse),
                     column(answers, &Answer::rows), column(answers, &Answer::bytes), column(answers, &Answer::dense));
    }

    nb::object logits(Doubles hidden, Ids ids, int threads) const {
        const int64_t batch = batch_of(hidden, reader_.executor->dim);
        check(ids.ndim() == 2 && static_cast<int64_t>(ids.shape(0)) == batch, "ids must be [batch, m]");
        const int64_t m = static_cast<int64_t>(ids.shape(1));
        for (int64_t i = 0; i < batch * m; ++i)
            check(ids.data()[i] >= 0 && ids.data()[i] < reader_.executor->vocab, "an id is out of range");
        std::vector<double> out(batch * m);
        unlocked([&] { headlong::logits(*reader_.executor, hidden.data(), batch, ids.data(), m, thread_count(threads), out.data()); });
        return owned(std::move(out), {static_cast<size_t>(batch), static_cast<size_t>(m)});
    }

    nb::object sample(Doubles hidden, int n, double temperature, int64_t top_k, double top_p, double min_p, uint64_t seed, uint64_t row0,
                      std::optional<Bytes> mask, int threads, int64_t class0, double delta, uint64_t chance, double eps, bool last) const {
        return drawn(hidden, {SampleRule{n, temperature, top_k, top_p, min_p, seed, row0, class0, last}}, asked(hidden, eps, mask, threads, delta, chance));
    }

    // Each row by a rule of its own: temperatures, top_ks, top_ps, min_ps, seeds and rows are [batch].
    nb::object sample_each(Doubles hidden, int n, Doubles temperature, Ids top_k, Doubles top_p, Doubles min_p, Words seed, Words row,
                           std::optional<Bytes> mask, int threads, int64_t class0, double delta, uint64_t chance, double eps, bool last) const {
        const size_t batch = hidden.shape(0);
        for (size_t size : {temperature.size(), top_k.size(), top_p.size(), min_p.size(), seed.size(), row.size()})
            check(size == batch && batch > 0, "a rule for each row");
        std::vector<SampleRule> rules;
        for (size_t q = 0; q < batch; ++q)
            rules.push_back({n, temperature.data()[q], top_k.data()[q], top_p.data()[q], min_p.data()[q], seed.data()[q], row.data()[q], class0, last});
        return drawn(hidden, rules, asked(hidden, eps, mask, threads, delta, chance));
    }

    const char* isa() const { return reader_.executor->isa; }
    nb::object capsule() const { return kept_[0].attr("capsule"); }
    nb::object estimates() const { return kept_[1].attr("estimates"); }  // of its codes
    nb::capsule reader() const { return nb::capsule(&reader_, kReaderCapsule); }

  private:
    template <typename T>
    static const T* held(const nb::object& by, const char* name) {
        return by.is_none() ? nullptr : static_cast<const T*>(nb::cast<nb::capsule>(by.attr("capsule")).data(name));
    }

    Question asked(const Doubles& hidden, double eps, const std::optional<Bytes>& mask, int threads, double delta, uint64_t seed) const {
        const int64_t batch = batch_of(hidden, reader_.executor->dim);
        check(eps > 0 && delta >= 0 && delta < 1, "eps > 0, 0 <= delta < 1");
        Question question;
        question.eps = eps, question.delta = delta, question.seed = seed, question.threads = thread_count(threads);
        if (!mask) return question;
        check_mask(mask, batch, reader_.executor->vocab);
        question.mask = mask->data(), question.mask_per_row = mask->shape(0) != 1;
        return question;
    }

    nb::object drawn(const Doubles& hidden, const std::vector<SampleRule>& rules, const Question& question) const {
        for (const SampleRule& rule : rules) {
            check(rule.n >= 1 && rule.temperature > 0 && rule.top_k >= 0 && rule.top_p > 0 && rule.top_p <= 1 && rule.min_p >= 0 && rule.min_p <= 1,
                  "n >= 1, temperature > 0, top_k >= 0, 0 < top_p <= 1, 0 <= min_p <= 1");
            check(rule.class0 >= 0, "class0 >= 0");
            check(!rule.last || std::isinf(question.eps), "a temperature that comes last has no normaliser: eps is infinite");
        }
        std::vector<Draw> draws;
        const std::vector<Answer> answers = unlocked([&] { return reader_.sample(hidden.data(), batch_of(hidden, reader_.executor->dim), rules, question, &draws); });
        const size_t B = answers.size(), N = static_cast<size_t>(rules.front().n);
        std::vector<double> log_probs(B * N, -kInf);
        for (size_t i = 0; i < B * N; ++i)
            if (draws[i].id >= 0) log_probs[i] = reader_.executor->linked(draws[i].z) / rules[rules.size() > 1 ? i / N : 0].temperature - answers[i / N].lse;
        return named("FoundDraws", column(draws, &Draw::id, {B, N}), column(draws, &Draw::z, {B, N}), column(draws, &Draw::score, {B, N}),
                     column(draws, &Draw::proved, {B, N}), column(answers, &Answer::rows), column(answers, &Answer::bytes),
                     column(answers, &Answer::dense), column(answers, &Answer::lse), column(answers, &Answer::error), column(answers, &Answer::kept),
                     owned(std::move(log_probs), {B, N}));
    }

    nb::tuple kept_;
    Reader reader_;
};

}  // namespace

void bind_reader(nb::module_& m) {
    nb::class_<BoundReader>(m, "Reader")
        .def(nb::init<nb::object, nb::object, nb::object, std::tuple<int64_t, int64_t, int64_t, bool>, bool>(), nb::arg("executor"),
             nb::arg("codes").none(), nb::arg("blocks").none(), nb::arg("asked"), nb::arg("every"))
        .def("topk", &BoundReader::topk, nb::arg("hidden"), nb::arg("k"), nb::arg("eps"), nb::arg("mask").none(), nb::arg("threads") = 0,
             nb::arg("delta") = 0.0, nb::arg("seed") = 0)
        .def("lse", &BoundReader::lse, nb::arg("hidden"), nb::arg("eps"), nb::arg("mask").none(), nb::arg("threads") = 0, nb::arg("delta") = 0.0,
             nb::arg("seed") = 0)
        .def("entropy", &BoundReader::entropy, nb::arg("hidden"), nb::arg("eps"), nb::arg("mask").none(), nb::arg("threads") = 0, nb::arg("delta") = 0.0,
             nb::arg("seed") = 0)
        .def("logits", &BoundReader::logits, nb::arg("hidden"), nb::arg("ids"), nb::arg("threads") = 0)
        .def("sample", &BoundReader::sample, nb::arg("hidden"), nb::arg("n"), nb::arg("temperature"), nb::arg("top_k"), nb::arg("top_p"),
             nb::arg("min_p"), nb::arg("seed"), nb::arg("row0"), nb::arg("mask").none(), nb::arg("threads") = 0, nb::arg("class0") = 0,
             nb::arg("delta") = 0.0, nb::arg("chance") = 0, nb::arg("eps") = kInf, nb::arg("last") = false)
        .def("sample_each", &BoundReader::sample_each, nb::arg("hidden"), nb::arg("n"), nb::arg("temperature"), nb::arg("top_k"), nb::arg("top_p"),
             nb::arg("min_p"), nb::arg("seed"), nb::arg("row"), nb::arg("mask").none(), nb::arg("threads"), nb::arg("class0"), nb::arg("delta"), nb::arg("chance"),
             nb::arg("eps") = kInf, nb::arg("last") = false)
        .def_prop_ro("isa", &BoundReader::isa)
        .def_prop_ro("capsule", &BoundReader::capsule)
        .def_prop_ro("estimates", &BoundReader::estimates)
        .def_prop_ro("reader", &BoundReader::reader);
}

}  // namespace headlong
