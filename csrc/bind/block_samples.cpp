// Samples by blocks, for Python; capsules belong to the objects that gave them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include "bind/arguments.h"
#include "bind/without_gil.h"
#include "by_blocks/samples.h"
#include "runtime/pool.h"

namespace headlong {
namespace {

// Plain samples, as an executor's.
nb::object sampled(nb::capsule executor, nb::capsule blocks, Doubles hidden, int n, double temperature, uint64_t seed, uint64_t row0,
                  std::optional<Bytes> mask, int threads, int64_t class0, std::pair<double, double> affine) {
    const auto* e = static_cast<const Executor*>(executor.data(kExecutorCapsule));
    const auto* b = static_cast<const Blocks*>(blocks.data(kBlocksCapsule));
    check(e != nullptr && b != nullptr && e->dim == b->dim && e->vocab == b->vocab, "executor and blocks of one layer");
    check(hidden.ndim() == 2 && static_cast<int64_t>(hidden.shape(1)) == e->dim, "hidden [batch, dim]");
    const auto count = static_cast<int64_t>(hidden.shape(0));
    check(n >= 1 && temperature > 0 && class0 >= 0 && affine.first > 0, "n >= 1, temperature > 0, class0 >= 0, a rising link");
    check(!mask || (mask->ndim() == 2 && static_cast<int64_t>(mask->shape(1)) == e->vocab &&
                    (mask->shape(0) == 1 || static_cast<int64_t>(mask->shape(0)) == count)), "mask [1 or batch, vocab]");
    Question question;
    question.threads = thread_count(threads);
    question.mask = mask ? mask->data() : nullptr;
    question.mask_per_row = mask && mask->shape(0) > 1;
    const SampleRule rule{n, temperature, 0, 1, 0, seed, row0, class0};
    std::vector<Answer> answers;
    std::vector<Draw> draws;
    unlocked([&] { answers = sample_by_blocks(*e, *b, affine, hidden.data(), count, rule, question, &draws); });
    return sample_arrays(answers, draws, n);
}

}  // namespace

void bind_block_samples(nb::module_& m) {
    m.def("sample_by_blocks", &sampled, nb::arg("executor"), nb::arg("blocks"), nb::arg("hidden"), nb::arg("n"), nb::arg("temperature"),
          nb::arg("seed"), nb::arg("row0"), nb::arg("mask").none(), nb::arg("threads"), nb::arg("class0"), nb::arg("affine"));
}

}  // namespace headlong
