// Kernels by themselves: norms of rows, their products with a few queries, and noise.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "bind/arguments.h"
#include "bind/arrays.h"
#include "bind/without_gil.h"
#include "executor/executor.h"
#include "kernels/any_rows.h"
#include "runtime/pool.h"
#include "runtime/scratch.h"
#include "runtime/shared_work.h"

namespace headlong {
namespace {

// Rows are handed out in runs, so that threads write to distant memory.
template <typename Work>
void over_rows(int64_t rows, int threads, const Work& work) {
    Turns<int64_t> next;
    run_parallel(threads, [&](int) {
        for (int64_t start = next.fetch_add(256); start < rows; start = next.fetch_add(256))
            for (int64_t r = start; r < std::min(rows, start + 256); ++r) work(r);
    });
}

nb::object row_norms(AnyArray weight, const std::string& name, int threads, const std::string& isa) {
    const StoredRows rows = rows_of(weight, name);
    const Kernels* kernels = kernels_for(isa.c_str());
    check(kernels != nullptr, "this CPU does not have that instruction set");
    std::vector<float> out(rows.vocab);
    unlocked([&] {
        over_rows(rows.vocab, thread_count(threads), [&](int64_t r) {
            with_row(*kernels, rows.row(r), rows.kind, rows.dim, [&](const void* row, Kind kind) { out[r] = kernels->row_norm(row, kind, rows.dim); });
        });
    });
    return owned(std::move(out), {static_cast<size_t>(rows.vocab)});
}

// <row, x_q> for all rows and a few queries, [n][vocab], in float64.
void products_into(AnyArray weight, const std::string& name, Doubles hidden, nb::ndarray<double, nb::numpy, nb::c_contig, nb::device::cpu> out, int threads, const std::string& isa) {
    const StoredRows rows = rows_of(weight, name);
    const int64_t vocab = rows.vocab, dim = rows.dim;
    check(hidden.ndim() == 2 && static_cast<int64_t>(hidden.shape(1)) == dim, "hidden must be [n, dim]");
    check(out.size() == hidden.shape(0) * weight.shape(0), "out must be [n, vocab]");
    const int n = static_cast<int>(hidden.shape(0));
    const int64_t wide = (dim + kWide - 1) / kWide * kWide;
    const Kernels* kernels = kernels_for(isa.c_str());
    check(kernels != nullptr, "this CPU does not have that instruction set");
    unlocked([&] {
        Scratch<double> x(static_cast<size_t>(n * wide));
        std::memset(x.data(), 0, sizeof(double) * n * wide);
        for (int q = 0; q < n; ++q) std::copy_n(hidden.data() + q * dim, dim, x.data() + q * wide);
        const int64_t at_once = std::max<int64_t>(4, std::min<int64_t>(kBlock, (1 << 14) / wide));
        Turns<int64_t> next;
        run_parallel(thread_count(threads), [&](int) {
            Scratch<double> scratch(static_cast<size_t>(at_once * wide));
            for (int64_t first = next.fetch_add(at_once); first < vocab; first = next.fetch_add(at_once))
                dot_block(*kernels, rows.row(first), rows.kind, dim, std::min(at_once, vocab - first), x.data(), n, scratch.data(),
                          out.data() + first, vocab);
        });
    });
}

nb::object gumbels(uint64_t seed, uint64_t row, uint32_t draw, uint32_t count, Ids ids) {
    const size_t n = ids.size();
    std::vector<double> out(count * n);
    {
        nb::gil_scoped_release other_threads;
        for (size_t d = 0; d < count; ++d)
            for (size_t i = 0; i < n; ++i) out[d * n + i] = gumbel(seed, row, draw + static_cast<uint32_t>(d), ids.data()[i]);
    }
    return owned(std::move(out), {count, n});
}

using Words = nb::ndarray<const uint32_t, nb::ndim<1>, nb::numpy, nb::c_contig, nb::device::cpu>;

// The keys of logits 0 at temperature 1 that the noise's high words allow at most, by the level `isa`.
nb::object most_keys(const std::string& isa, Words words) {
    const Kernels* kernels = kernels_for(isa.c_str());
    if (kernels == nullptr) throw nb::value_error("no such level here");
    const size_t n = words.size(), whole = in_blocks(n);
    std::vector<uint32_t> padded(whole);
    std::copy_n(words.data(), n, padded.data());
    std::vector<float> zero(whole), upper(whole);
    kernels->gumbel_keys(zero.data(), zero.data(), padded.data(), static_cast<int64_t>(whole), Link{LinkForm::affine, 1.f, 0.f}, 1.f, upper.data());
    upper.resize(n);
    return owned(std::move(upper), {n});
}

}  // namespace

void bind_kernels(nb::module_& m) {
    m.def("row_norms", &row_norms, nb::arg("weight"), nb::arg("kind"), nb::arg("threads") = 0, nb::arg("isa") = "");
    m.def("products_into", &products_into, nb::arg("weight"), nb::arg("kind"), nb::arg("hidden"), nb::arg("out"),
          nb::arg("threads") = 0, nb::arg("isa") = "");
    m.def("gumbels", &gumbels, nb::arg("seed"), nb::arg("row"), nb::arg("draw"), nb::arg("count"), nb::arg("ids"));
    m.def("most_keys", &most_keys, nb::arg("isa"), nb::arg("words"));
}

}  // namespace headlong
