// headlong._native.Columns: a layer read coordinate by coordinate (adaptive/search.cpp, adaptive/race.cpp).
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "adaptive/search.h"
#include "bind/arguments.h"
#include "bind/without_gil.h"
#include "runtime/pool.h"

namespace headlong {
namespace {

using Words = nb::ndarray<const uint64_t, nb::numpy, nb::c_contig, nb::device::cpu>;

class Columns {
  public:
    Columns(AnyArray weight, const std::string& kind, std::optional<Floats> bias, Floats norms, nb::tuple link,
            AnyArray columns, Doubles column_weight, Floats base, std::optional<Floats> size, std::optional<Floats> peak,
            std::optional<Floats> squares, double lost, const std::string& isa) {
        ColumnReader& r = reader_;
        r.kernels = kernels_for(isa.c_str());
        check(r.kernels != nullptr, "this CPU does not have that instruction set");
        r.column = columns_for(r.kernels->isa);
        r.kind = kind_of(kind);
        check(weight.ndim() == 2 && weight.itemsize() == static_cast<size_t>(item_bytes(r.kind)), "weight must be [vocab, dim]");
        r.weight = weight.data();
        r.vocab = static_cast<int64_t>(weight.shape(0));
        r.dim = static_cast<int64_t>(weight.shape(1));
        check(r.vocab > 0 && r.dim > 0 && r.vocab < (int64_t{1} << 31) - kBlock, "a layer has 1 to 2^31 - 65 classes");
        r.padded = in_blocks(r.vocab);
        keep(weight);
        if (bias) {
            check(static_cast<int64_t>(bias->size()) == r.vocab, "bias must be [vocab]");
            r.bias = bias->data();
            keep(*bias);
        }
        check(static_cast<int64_t>(norms.size()) == r.vocab, "norms must be [vocab]");
        for (int64_t i = 0; i < r.vocab; ++i) r.most_norm = std::max<double>(r.most_norm, norms.data()[i]);
        const auto form = nb::cast<std::string>(link[0]);
        check(form == "affine" || form == "softcap", "a link is affine or softcap");
        r.link_a = nb::cast<double>(link[1]);
        r.link_b = nb::cast<double>(link[2]);
        r.link = Link{link_form(form), static_cast<float>(r.link_a), static_cast<float>(r.link_b)};
        check(columns.dtype() == nb::dtype<float>() || (columns.itemsize() == 2 && r.kind != Kind::f32 && !squares.has_value()),
              "columns are float32; those of the published search may be of the weight's kind");
        r.columns = columns.data();
        r.column_kind = columns.itemsize() == 4 ? Kind::f32 : r.kind;
        const bool races = squares.has_value();
        const auto shape = [&](size_t axis) { return static_cast<int64_t>(columns.shape(axis)); };
        if (races)
            check(columns.ndim() == 2 && shape(1) == r.padded, "a race's columns must be [coordinates, padded vocab]");
        else
            check(columns.ndim() == 3 && shape(0) == r.padded / 64 && shape(2) == 64, "columns must be [groups, coordinates, 64]");
        r.rotated_dim = shape(races ? 0 : 1);
        check(r.rotated_dim < (1 << 30), "columns must be fewer than 2^30");
        keep(columns);
        r.column_weight = column_weight.data();
        check(static_cast<int64_t>(column_weight.size()) == (races ? r.blocks() : r.rotated_dim),
              "column_weight must be [coordinates], or [blocks] for a race");
        keep(column_weight);
        r.base = per_class(base);
        if (!races) return;
        check(size.has_value() && peak.has_value(), "a race has size, peak and squares");
        r.size = per_class(*size);
        r.peak = per_class(*peak);
        check(squares->ndim() == 2 && static_cast<int64_t>(squares->shape(0)) == r.blocks() &&
                  static_cast<int64_t>(squares->shape(1)) == r.padded,
              "squares must be [blocks, padded vocab]");
        r.squares = squares->data();
        keep(*squares);
        r.lost = lost;
    }

    nb::tuple published(Doubles x, Doubles hidden, Words keys, std::optional<Bytes> mask, uint64_t seed,
                        const std::tuple<double, double, double, bool, double, double, Doubles>& rules, int64_t k,
                        int threads, bool estimates) const {
        const int64_t batch = batch_of(x, hidden, keys, mask), vocab = reader_.vocab;
        check(reader_.squares == nullptr && reader_.link.form == LinkForm::affine, "published reads plain columns and an affine link");
        check(k >= 1 && k <= vocab, "k must be in 1..vocab");
        const auto& [eps, delta, warm, exact, arm, sum, widths] = rules;
        check(eps > 0 && delta > 0 && static_cast<int64_t>(widths.size()) == batch, "eps, delta > 0; one width a query");
        std::vector<PublishedAnswer> answers(batch);
        std::vector<float> kept(estimates ? batch * vocab : 0);
        const double* width = widths.data();
        const PublishedRules shared{eps, delta, warm, exact, arm, sum, 0, k};
        unlocked([&] {
            each(batch, threads, [&](int64_t b, int use) {
                PublishedRules own = shared;
                own.width = width[b];
                answers[b] = reader_.published(x.data() + b * reader_.rotated_dim, hidden.data() + b * reader_.dim, row(mask, b),
                                               seed, keys.data()[b], own, use, estimates ? &kept[b * vocab] : nullptr);
            });
        });
        const size_t B = batch, K = k;
        std::vector<double> values(B * K, -kInf), lse(B), bytes(B);
        std::vector<int64_t> ids(B * K, -1), pulls(B), full(B), rows(B);
        for (size_t b = 0; b < B; ++b) {
            const PublishedAnswer& answer = answers[b];
            for (size_t i = 0; i < answer.best.size(); ++i) {
                ids[b * K + i] = answer.best[i].id;
                values[b * K + i] = answer.best[i].z;
            }
            lse[b] = answer.lse;
            pulls[b] = answer.pulls;
            full[b] = answer.full;
            rows[b] = answer.rows;
            bytes[b] = answer.bytes;
        }
        return nb::make_tuple(owned(std::move(values), {B, K}), owned(std::move(ids), {B, K}), owned(std::move(lse), {B}),
                              owned(std::move(pulls), {B}), owned(std::move(full), {B}), owned(std::move(rows), {B}),
                              owned(std::move(bytes), {B}), owned(std::move(kept), {estimates ? B : 0, static_cast<size_t>(vocab)}));
    }

    nb::tuple race(Doubles x, Doubles hidden, Doubles shared, Words keys, std::optional<Bytes> mask, uint64_t seed,
                   const std::tuple<double, double, int, double, double, double>& rules, int64_t k, int threads) const {
        const int64_t batch = batch_of(x, hidden, keys, mask);
        check(reader_.squares != nullptr, "a race has size, peak and squares");
        check(k >= 0 && k <= reader_.vocab && static_cast<int64_t>(shared.size()) == batch, "k must be in 0..vocab");
        const auto& [eps, delta, widths, factor, odds, share] = rules;
        check(eps > 0 && delta >= 0 && delta < 1 && widths >= 0 && widths <= 2, "eps > 0, 0 <= delta < 1");
        const RaceRules own{k, eps, delta, widths, factor, odds, share};
        std::vector<RaceAnswer> answers(batch);
        unlocked([&] {
            each(batch, threads, [&](int64_t b, int use) {
                answers[b] = reader_.race(x.data() + b * reader_.rotated_dim, hidden.data() + b * reader_.dim, shared.data()[b],
                                          row(mask, b), seed, keys.data()[b], own, use);
            });
        });
        const size_t B = batch, K = k;
        std::vector<double> logits(B * K, -kInf), log_probs(B * K, -kInf), lse(B), error(B), bytes(B);
        std::vector<int64_t> ids(B * K, -1), rows(B), entries(B);
        std::vector<uint8_t> finish_densely(B);
        for (size_t b = 0; b < B; ++b) {
            const RaceAnswer& answer = answers[b];
            for (size_t i = 0; i < answer.best.size(); ++i) {
                ids[b * K + i] = answer.best[i].id;
                logits[b * K + i] = answer.best[i].z;
                log_probs[b * K + i] = reader_.linked(answer.best[i].z) - answer.lse;
            }
            lse[b] = answer.lse;
            error[b] = answer.error;
            rows[b] = answer.rows;
            entries[b] = answer.entries;
            bytes[b] = answer.bytes;
            finish_densely[b] = answer.finish_densely;
        }
        return nb::make_tuple(owned(std::move(logits), {B, K}), owned(std::move(ids), {B, K}),
                              owned(std::move(log_probs), {B, K}), owned(std::move(lse), {B}), owned(std::move(error), {B}),
                              owned(std::move(rows), {B}), owned(std::move(bytes), {B}), owned(std::move(entries), {B}),
                              owned_flags(std::move(finish_densely), {B}));
    }

    std::string isa() const { return reader_.kernels->isa; }

  private:
    template <typename Array>
    void keep(const Array& array) {
        kept_.push_back(nb::cast(array));
    }

    const float* per_class(const Floats& array) {
        check(static_cast<int64_t>(array.size()) == reader_.padded, "a per-class array must be [padded vocab]");
        keep(array);
        return array.data();
    }

    int64_t batch_of(const Doubles& x, const Doubles& hidden, const Words& keys, const std::optional<Bytes>& mask) const {
        const int64_t batch = static_cast<int64_t>(keys.size());
        check(x.ndim() == 2 && static_cast<int64_t>(x.shape(0)) == batch && static_cast<int64_t>(x.shape(1)) == reader_.rotated_dim,
              "x must be [batch, coordinates]");
        check(hidden.ndim() == 2 && static_cast<int64_t>(hidden.shape(0)) == batch &&
                  static_cast<int64_t>(hidden.shape(1)) == reader_.dim,
              "hidden must be [batch, dim]");
        if (mask)
            check(mask->ndim() == 2 && static_cast<int64_t>(mask->shape(1)) == reader_.vocab &&
                      (mask->shape(0) == 1 || static_cast<int64_t>(mask->shape(0)) == batch),
                  "mask must be [1 or batch, vocab]");
        return batch;
    }

    const uint8_t* row(const std::optional<Bytes>& mask, int64_t b) const {
        return mask ? mask->data() + (mask->shape(0) == 1 ? 0 : b * reader_.vocab) : nullptr;
    }

    // One query to a thread where there are enough of them; all threads to each query otherwise.
    template <typename Work>
    static void each(int64_t batch, int asked, const Work& work) {
        const int threads = thread_count(asked);
        if (batch < threads || threads == 1) {
            for (int64_t b = 0; b < batch; ++b) {
                check_in();
                work(b, threads);
            }
            return;
        }
        run_parallel(threads, [&](int t) {
            for (int64_t b = t; b < batch; b += threads) {
                check_in();
                work(b, 1);
            }
        });
    }

    ColumnReader reader_;
    std::vector<nb::object> kept_;
};

}  // namespace

void bind_adaptive(nb::module_& m) {
    nb::class_<Columns>(m, "Columns")
        .def(nb::init<AnyArray, const std::string&, std::optional<Floats>, Floats, nb::tuple, AnyArray, Doubles, Floats,
                      std::optional<Floats>, std::optional<Floats>, std::optional<Floats>, double, const std::string&>(),
             nb::arg("weight"), nb::arg("kind"), nb::arg("bias").none(), nb::arg("norms"), nb::arg("link"),
             nb::arg("columns"), nb::arg("column_weight"), nb::arg("base"), nb::arg("size").none() = nb::none(),
             nb::arg("peak").none() = nb::none(), nb::arg("squares").none() = nb::none(), nb::arg("lost") = 0.0,
             nb::arg("isa") = "")
        .def("published", &Columns::published, nb::arg("x"), nb::arg("hidden"), nb::arg("keys"), nb::arg("mask").none(),
             nb::arg("seed"), nb::arg("rules"), nb::arg("k"), nb::arg("threads") = 0, nb::arg("estimates") = false)
        .def("race", &Columns::race, nb::arg("x"), nb::arg("hidden"), nb::arg("shared"), nb::arg("keys"),
             nb::arg("mask").none(), nb::arg("seed"), nb::arg("rules"), nb::arg("k"), nb::arg("threads") = 0)
        .def_prop_ro("isa", &Columns::isa);
}

}  // namespace headlong
