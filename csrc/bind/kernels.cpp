// Kernels by themselves: norms of rows, their products with a few queries, noise, and hidden vectors in float64.
#include <algorithm>
#include <cstring>

#include "bind/arguments.h"
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
    const Kernels* kernels = level_of(isa).kernels;
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
    const Kernels* kernels = level_of(isa).kernels;
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

using Places = nb::ndarray<double, nb::numpy, nb::c_contig, nb::device::cpu>;

// Hidden vectors as they come, in float64 and checked: one pass, where NumPy takes five, each of them expensive in cold caches. Writes the rows
// to `out` (None where they are that already); returns the size of the largest entry, infinity where one is not finite.
double widened(AnyArray rows, const std::string& name, std::optional<Places> out) {
    static const Kernels* kernels = level_of("").kernels;
    const int64_t n = static_cast<int64_t>(rows.size());
    if (!out) {
        check(name == "float64" && rows.itemsize() == 8, "rows must be float64, or have a place to be widened to");
        return unlocked([&] { return kernels->largest_double(static_cast<const double*>(rows.data()), n); });
    }
    check(out->size() == rows.size(), "out must be as large as rows");
    const Kind kind = kind_of(name);
    const void* from = weight_of(rows, kind);
    double* to = out->data();
    return unlocked([&] { return kernels->widen(from, kind, n, to); });
}

}  // namespace

void bind_kernels(nb::module_& m) {
    m.def("row_norms", &row_norms, nb::arg("weight"), nb::arg("kind"), nb::arg("threads") = 0, nb::arg("isa") = "");
    m.def("products_into", &products_into, nb::arg("weight"), nb::arg("kind"), nb::arg("hidden"), nb::arg("out"),
          nb::arg("threads") = 0, nb::arg("isa") = "");
    m.def("gumbels", &gumbels, nb::arg("seed"), nb::arg("row"), nb::arg("draw"), nb::arg("count"), nb::arg("ids"));
    m.def("widened", &widened, nb::arg("rows"), nb::arg("kind"), nb::arg("out").none());
}

}  // namespace headlong
