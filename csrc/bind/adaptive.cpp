// The Python face of AdaptiveSoftmax's search over coordinates.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#include "adaptive/search.h"
#include "bind/arguments.h"
#include "bind/without_gil.h"
#include "runtime/shared_work.h"

namespace headlong {
namespace {

class Adaptive {
  public:
    Adaptive(AnyArray weight, const std::string& kind, std::optional<Floats> bias, Floats columns, Doubles column_weight,
             std::pair<double, double> link, const std::string& isa) {
        Columns& l = layer_;
        l.kernels = level_of(isa).kernels;
        l.kind = kind_of(kind);
        l.weight = weight_of(weight, l.kind);
        l.vocab = static_cast<int64_t>(weight.shape(0));
        l.dim = static_cast<int64_t>(weight.shape(1));
        check(l.vocab > 0 && l.dim > 0 && l.vocab < (int64_t{1} << 31) - kBlock, "a layer has 1 to 2^31 - 65 classes");
        check(l.dim < (1 << 30), "columns must be fewer than 2^30");
        check(!bias || static_cast<int64_t>(bias->size()) == l.vocab, "bias must be [vocab]");
        check(static_cast<int64_t>(columns.size()) == l.groups() * l.dim * kGroup, "columns must be [groups, dim, 64]");
        check(static_cast<int64_t>(column_weight.size()) == l.dim, "column_weight must be [dim]");
        check(link.first > 0, "a rising link");
        l.bias = bias ? bias->data() : nullptr;
        l.columns = columns.data();
        l.column_weight = column_weight.data();
        l.a = link.first, l.b = link.second;
        for (nb::object kept : {nb::cast(weight), nb::cast(bias), nb::cast(columns), nb::cast(column_weight)}) kept_.push_back(kept);
    }

    // FoundByCoordinates: values, ids [batch][k], lse, pulls, full, rows [batch], estimates [batch or 0][vocab].
    nb::object search(Doubles hidden, Words keys, std::optional<Bytes> mask, uint64_t seed,
                     const std::tuple<double, double, double, double, double, bool, Doubles>& rules, int64_t k, int asked, bool estimates) const {
        const auto batch = static_cast<int64_t>(keys.size()), vocab = layer_.vocab;
        check(is_matrix(hidden, batch, layer_.dim), "hidden must be [batch, dim]");
        check_mask(mask, batch, vocab);
        check(k >= 1 && k <= vocab, "k must be in 1..vocab");
        const auto& [eps, delta, warm, arm, sum, published, widths] = rules;
        const double* width = widths.data();  // C++17 captures no structured binding
        check(eps > 0 && delta > 0 && static_cast<int64_t>(widths.size()) == batch, "eps, delta > 0; one width a query");
        std::vector<FoundByColumns> answers(batch);
        std::vector<float> kept(estimates ? batch * vocab : 0);
        const int threads = thread_count(asked);
        const bool by_query = batch >= threads && threads > 1;  // one query to a thread; otherwise all threads to each query
        const AdaptiveRules shared{eps, delta, warm, arm, sum, published, 0, k};
        unlocked([&] {
            Turns<int64_t> next;
            run_parallel(by_query ? threads : 1, [&](int) {
                for (int64_t q = next++; q < batch; q = next++) {
                    AdaptiveRules own = shared;
                    own.width = width[q];
                    const uint8_t* allowed = mask ? mask->data() + (mask->shape(0) == 1 ? 0 : q * vocab) : nullptr;
                    answers[q] = search_columns(layer_, own, allowed, hidden.data() + q * layer_.dim, seed, keys.data()[q], by_query ? 1 : threads,
                                                estimates ? &kept[q * vocab] : nullptr);
                }
            });
        });
        const auto [ids, values] = best_columns(answers, k);
        const auto rows = [](const FoundByColumns& one) { return static_cast<int64_t>(one.best.size()); };
        return named("FoundByCoordinates", values, ids, column(answers, &FoundByColumns::lse), column(answers, &FoundByColumns::pulls), column(answers, &FoundByColumns::full),
                     column(answers, rows), owned(std::move(kept), {static_cast<size_t>(estimates ? batch : 0), static_cast<size_t>(vocab)}));
    }

  private:
    Columns layer_;
    std::vector<nb::object> kept_;
};

}  // namespace

void bind_adaptive(nb::module_& m) {
    nb::class_<Adaptive>(m, "Adaptive")
        .def(nb::init<AnyArray, const std::string&, std::optional<Floats>, Floats, Doubles, std::pair<double, double>, const std::string&>(),
             nb::arg("weight"), nb::arg("kind"), nb::arg("bias").none(), nb::arg("columns"), nb::arg("column_weight"), nb::arg("link"),
             nb::arg("isa"))
        .def("search", &Adaptive::search, nb::arg("hidden"), nb::arg("keys"), nb::arg("mask").none(), nb::arg("seed"), nb::arg("rules"),
             nb::arg("k"), nb::arg("threads") = 0, nb::arg("estimates") = false);
}

}  // namespace headlong
