// Normalisers by rows that are drawn from blocks and by sums of nodes, for Python; capsules belong to the objects that gave them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>

#include "bind/arguments.h"
#include "bind/without_gil.h"
#include "by_blocks/normaliser.h"
#include "by_blocks/samples.h"
#include "node_sums/median_order.h"
#include "node_sums/search.h"
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

// Rows and biases of the leaves, column after column, and the largest entry of each column.
void fill_leaves(const Executor& e, const int32_t* order, NodeSums* s) {
    const int64_t width = e.dim + 1;
    s->rows.resize(e.vocab * width);
    s->widest.assign(width, 0.0);
    std::vector<double> row(width);
    for (int64_t leaf = 0; leaf < int64_t{1} << s->levels; ++leaf) {
        const int64_t start = node_start(e.vocab, s->levels, leaf), n = node_start(e.vocab, s->levels, leaf + 1) - start;
        for (int64_t i = 0; i < n; ++i) {
            const int64_t id = order[start + i];
            check(0 <= id && id < e.vocab, "the order holds classes");
            e.kernels->widen(static_cast<const char*>(e.weight) + id * e.dim * item_bytes(e.kind), e.kind, e.dim, row.data());
            row[e.dim] = e.bias == nullptr ? 0 : e.bias[id];
            for (int64_t j = 0; j < width; ++j) {
                s->rows[start * width + j * n + i] = static_cast<float>(row[j]);
                s->widest[j] = std::max(s->widest[j], std::fabs(row[j]));
            }
        }
    }
}

// Gives an executor, before it is asked anything, the nodes among which normalisers are sought: see headlong/node_sums.py.
void seek_sums(nb::capsule executor, nb::ndarray<const int32_t, nb::numpy, nb::c_contig, nb::device::cpu> order, Doubles nodes, double most) {
    auto* e = static_cast<Executor*>(executor.data(kExecutorCapsule));
    check(e != nullptr && e->dim <= NodeLayout::kMostDim && e->link.form == LinkForm::affine, "an executor of few coordinates and an affine link");
    auto sums = std::make_shared<NodeSums>();
    sums->vocab = e->vocab, sums->dim = e->dim, sums->at = NodeLayout(e->dim), sums->most = sums->trial.most = most;
    check(nodes.ndim() == 2 && static_cast<int64_t>(nodes.shape(1)) == sums->at.fields, "nodes [nodes, fields]");
    const auto count = static_cast<int64_t>(nodes.shape(0));
    while ((int64_t{2} << sums->levels) - 1 < count) ++sums->levels;
    check((int64_t{2} << sums->levels) - 1 == count && int64_t{1} << sums->levels <= e->vocab, "whole levels of nodes");
    check(static_cast<int64_t>(order.size()) == e->vocab, "order [vocab]");
    fill_leaves(*e, order.data(), sums.get());
    sums->nodes = std::shared_ptr<const double>(nodes.data(), [nodes](const double*) {});  // the array lives as long as they are read
    e->sums = std::move(sums);
}

nb::object order_of(Floats rows, int levels, int threads) {
    check(rows.ndim() == 2 && levels >= 0 && levels < 31 && int64_t{1} << levels <= static_cast<int64_t>(rows.shape(0)), "rows [n, dim], a row for each leaf");
    const auto vocab = static_cast<int64_t>(rows.shape(0)), dim = static_cast<int64_t>(rows.shape(1));
    std::vector<int32_t> order;
    unlocked([&] { order = median_order(rows.data(), vocab, dim, levels, thread_count(threads)); });
    return owned(std::move(order), {rows.shape(0)});
}

}  // namespace

void bind_block_draws(nb::module_& m) {
    m.def("sample_by_blocks", &sampled, nb::arg("executor"), nb::arg("blocks"), nb::arg("hidden"), nb::arg("n"), nb::arg("temperature"),
          nb::arg("seed"), nb::arg("row0"), nb::arg("mask").none(), nb::arg("threads"), nb::arg("class0"), nb::arg("affine"));
    m.def("topk_by_block_draws", &drawn, nb::arg("executor"), nb::arg("blocks"), nb::arg("hidden"), nb::arg("k"), nb::arg("eps"), nb::arg("threads"),
          nb::arg("delta"), nb::arg("seed"));
    m.def("try_block_draws", &try_drawn, nb::arg("executor"), nb::arg("blocks"), nb::arg("hidden"), nb::arg("eps"), nb::arg("spends"), nb::arg("tries"),
          nb::arg("threads"), nb::arg("seed"));
    m.def("seek_sums", &seek_sums, nb::arg("executor"), nb::arg("order"), nb::arg("nodes"), nb::arg("most"));
    m.def("median_order", &order_of, nb::arg("rows"), nb::arg("levels"), nb::arg("threads"));
}

}  // namespace headlong
