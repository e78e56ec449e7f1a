// Normalisers by rows that are drawn from blocks, for Python; capsules belong to the objects that gave them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>

#include "bind/arguments.h"
#include "bind/without_gil.h"
#include "by_blocks/normaliser.h"
#include "by_blocks/samples.h"
#include "runtime/pool.h"

namespace headlong {
namespace {

struct Parts {
    const Executor& executor;
    const Blocks& blocks;
    int64_t count;
};

Parts parts_of(const nb::capsule& executor, const nb::capsule& blocks, const Doubles& hidden) {
    const auto* e = static_cast<const Executor*>(executor.data(kExecutorCapsule));
    const auto* b = static_cast<const Blocks*>(blocks.data(kBlocksCapsule));
    check(e != nullptr && b != nullptr && e->dim == b->dim && e->vocab == b->vocab, "executor and blocks of one layer");
    check(hidden.ndim() == 2 && static_cast<int64_t>(hidden.shape(1)) == e->dim, "hidden [batch, dim]");
    return {*e, *b, static_cast<int64_t>(hidden.shape(0))};
}

Question question_of(int64_t k, double eps, int threads, double delta, uint64_t seed) {
    Question question;
    question.k = k;
    question.eps = eps;
    question.threads = thread_count(threads);
    question.delta = delta;
    question.seed = seed;
    return question;
}

// topk_arrays; None where nothing was learned for this.
nb::object drawn(nb::capsule executor, nb::capsule blocks, Doubles hidden, int64_t k, double eps, int threads, double delta, uint64_t seed) {
    const Parts p = parts_of(executor, blocks, hidden);
    const Question question = question_of(k, eps, threads, delta, seed);
    if (!learned_by_blocks(p.blocks, question, p.count)) return nb::none();
    std::vector<Answer> answers;
    unlocked([&] { answers = ask_by_blocks(p.executor, p.blocks, hidden.data(), p.count, question); });
    return topk_arrays(p.executor, answers, k);
}

// Estimates [count][spends][tries], NaN where blocks do not answer.
nb::object try_drawn(nb::capsule executor, nb::capsule blocks, Doubles hidden, double eps, const std::vector<double>& spends, int tries, int threads,
                     uint64_t seed) {
    const Parts p = parts_of(executor, blocks, hidden);
    check(tries >= 1 && tries <= 4096 && spends.size() <= 4096, "1..4096 tries");
    for (double spend : spends) check(spend > 0 && std::isfinite(spend), "what is spent is above 0");
    const Question question = question_of(0, eps, threads, 0.5, seed);  // that it may fail matters, not how often
    std::vector<double> found;
    unlocked([&] { found = try_block_draws(p.executor, p.blocks, hidden.data(), p.count, question, spends, tries); });
    return owned(std::move(found), {static_cast<size_t>(p.count), spends.size(), static_cast<size_t>(tries)});
}

// Plain samples: sample's arrays, as an executor's.
nb::tuple sampled(nb::capsule executor, nb::capsule blocks, Doubles hidden, int n, double temperature, uint64_t seed, uint64_t row0,
                  std::optional<Bytes> mask, int threads, int64_t class0, std::pair<double, double> affine) {
    const Parts p = parts_of(executor, blocks, hidden);
    check(n >= 1 && temperature > 0 && class0 >= 0 && affine.first > 0, "n >= 1, temperature > 0, class0 >= 0, a rising link");
    check(!mask || (mask->ndim() == 2 && static_cast<int64_t>(mask->shape(1)) == p.executor.vocab &&
                    (mask->shape(0) == 1 || static_cast<int64_t>(mask->shape(0)) == p.count)), "mask [1 or batch, vocab]");
    Question question = question_of(0, kInf, threads, 0, 0);
    question.mask = mask ? mask->data() : nullptr;
    question.mask_per_row = mask && mask->shape(0) > 1;
    const SampleRule rule{n, temperature, 0, 1, 0, seed, row0, class0};
    std::vector<Answer> answers;
    std::vector<Draw> draws;
    unlocked([&] { answers = sample_by_blocks(p.executor, p.blocks, affine, hidden.data(), p.count, rule, question, &draws); });
    return sample_arrays(answers, draws, n);
}

}  // namespace

void bind_block_draws(nb::module_& m) {
    m.def("sample_by_blocks", &sampled, nb::arg("executor"), nb::arg("blocks"), nb::arg("hidden"), nb::arg("n"), nb::arg("temperature"),
          nb::arg("seed"), nb::arg("row0"), nb::arg("mask").none(), nb::arg("threads"), nb::arg("class0"), nb::arg("affine"));
    m.def("topk_by_block_draws", &drawn, nb::arg("executor"), nb::arg("blocks"), nb::arg("hidden"), nb::arg("k"), nb::arg("eps"), nb::arg("threads"),
          nb::arg("delta"), nb::arg("seed"));
    m.def("try_block_draws", &try_drawn, nb::arg("executor"), nb::arg("blocks"), nb::arg("hidden"), nb::arg("eps"), nb::arg("spends"), nb::arg("tries"),
          nb::arg("threads"), nb::arg("seed"));
}

}  // namespace headlong
