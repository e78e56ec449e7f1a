// Kernels by themselves: norms and codes of rows, noise, and how fast this machine reads.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "bind/arguments.h"
#include "bind/arrays.h"
#include "bind/without_gil.h"
#include "executor/executor.h"
#include "executor/query_codes.h"
#include "kernels/any_rows.h"
#include "runtime/pool.h"
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

using CodesOut = nb::ndarray<uint8_t, nb::ndim<4>, nb::numpy, nb::c_contig, nb::device::cpu>;

// `codes`, [blocks, quads, 64, 4], is filled.
nb::tuple encode_int8(AnyArray weight, const std::string& name, CodesOut codes, int threads, const std::string& isa) {
    const StoredRows rows = rows_of(weight, name);
    const int64_t vocab = rows.vocab, dim = rows.dim;
    const int64_t padded = in_blocks(vocab), blocks = padded / kBlock, quads = (dim + 3) / 4;
    const Kernels* kernels = kernels_for(isa.c_str());
    check(kernels != nullptr, "this CPU does not have that instruction set");
    check(static_cast<int64_t>(codes.size()) == blocks * quads * 256, "codes must be [blocks, quads, 64, 4]");
    if (blocks > 0) std::fill_n(codes.data() + (blocks - 1) * quads * 256, quads * 256, uint8_t{128});  // classes that only pad
    std::vector<float> scale(padded), error(padded), peak(padded), size(padded);
    unlocked([&] {
        over_rows(vocab, thread_count(threads), [&](int64_t r) {
            thread_local std::vector<uint8_t> row;
            row.assign(quads * 4, 128);
            with_row(*kernels, rows.row(r), rows.kind, dim, [&](const void* from, Kind kind) {
                kernels->encode_row(from, kind, dim, row.data(), &scale[r], &error[r], &peak[r], &size[r]);
            });
            uint8_t* to = codes.data() + r / kBlock * quads * 256 + r % kBlock * 4;
            for (int64_t j = 0; j < quads; ++j) std::copy_n(row.data() + j * 4, 4, to + j * 256);
        });
    });
    const size_t P = padded;
    return nb::make_tuple(owned(std::move(scale), {1, P}), owned(std::move(error), {P}), owned(std::move(peak), {P}), owned(std::move(size), {P}));
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

double code_product(const std::string& isa) {
    const Kernels* kernels = kernels_for(isa.c_str());
    check(kernels != nullptr, "this CPU does not have that instruction set");
    return kernels->code_product;
}

// GB/s of plain reads of `bytes` bytes by all threads at once: the median of `repeats`.
double bandwidth(int64_t bytes, int threads, int repeats, const std::string& isa) {
    const Kernels* kernels = kernels_for(isa.c_str());
    check(kernels != nullptr, "this CPU does not have that instruction set");
    check(bytes >= 4096 && repeats >= 1, "at least 4096 bytes, at least one repeat");
    return unlocked([&] {
        std::vector<uint64_t> data(bytes / 8, 1);
        const int n = thread_count(threads);
        constexpr int64_t piece = 1 << 16;
        std::vector<double> rates;
        volatile uint64_t sink = 0;
        for (int i = 0; i < repeats + 2; ++i) {
            Turns<int64_t> next;
            std::atomic<uint64_t> all{0};
            const auto start = std::chrono::steady_clock::now();
            run_parallel(n, [&](int) {
                uint64_t own = 0;
                for (int64_t at = next.fetch_add(piece); at < bytes; at = next.fetch_add(piece))
                    own ^= kernels->read(reinterpret_cast<const char*>(data.data()) + at, std::min(piece, bytes - at));
                all ^= own;
            });
            const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
            sink = sink ^ all.load();
            if (i >= 2) rates.push_back(static_cast<double>(bytes) / took.count() / 1e9);
        }
        std::nth_element(rates.begin(), rates.begin() + rates.size() / 2, rates.end());
        return rates[rates.size() / 2];
    });
}

// x as two int8 planes make it, and their step: what tests compare with other statements of the rule.
nb::tuple two_planes_of(Doubles x) {
    const std::vector<double> values(x.data(), x.data() + x.size());
    std::vector<double> made(values.size()), lost(values.size());
    Segment all{};
    all.stop = static_cast<int64_t>(values.size());
    std::vector<int> whole(values.size());
    const Coded coded = two_planes(values, all, lost, [&](int64_t j, int8_t high, int8_t low) { whole[j] = 256 * high + low; });
    for (size_t j = 0; j < made.size(); ++j) made[j] = static_cast<double>(coded.step) * whole[j];
    return nb::make_tuple(owned(std::move(made), {x.size()}), coded.step);
}

std::tuple<double, double> peaks_and_rest(Doubles x) {
    double rest, peaks;
    split_peaks(std::vector<double>(x.data(), x.data() + x.size()), 0, static_cast<int64_t>(x.size()), &rest, &peaks);
    return {peaks, rest};
}

}  // namespace

void bind_kernels(nb::module_& m) {
    m.def("row_norms", &row_norms, nb::arg("weight"), nb::arg("kind"), nb::arg("threads") = 0, nb::arg("isa") = "");
    m.def("encode_int8", &encode_int8, nb::arg("weight"), nb::arg("kind"), nb::arg("codes"), nb::arg("threads") = 0, nb::arg("isa") = "");
    m.def("gumbels", &gumbels, nb::arg("seed"), nb::arg("row"), nb::arg("draw"), nb::arg("count"), nb::arg("ids"));
    m.def("code_product", &code_product, nb::arg("isa"));
    m.def("most_keys", &most_keys, nb::arg("isa"), nb::arg("words"));
    m.def("two_planes", &two_planes_of, nb::arg("x"));
    m.def("split_peaks", &peaks_and_rest, nb::arg("x"));
    m.def("bandwidth", &bandwidth, nb::arg("bytes"), nb::arg("threads") = 0, nb::arg("repeats") = 9, nb::arg("isa") = "");
}

}  // namespace headlong
