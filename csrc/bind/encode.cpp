// The encoder for Python: arrays are made there and filled here.
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "bind/arguments.h"
#include "bind/without_gil.h"
#include "encode/task.h"
#include "kernels/any_rows.h"
#include "runtime/pool.h"
#include "runtime/scratch.h"
#include "runtime/shared_work.h"

namespace headlong {
namespace {

template <typename T>
using Place = nb::ndarray<T, nb::numpy, nb::c_contig, nb::device::cpu>;

template <typename T>
T* place_of(nb::handle array, int64_t size) {
    auto place = nb::cast<Place<T>>(array);
    check(static_cast<int64_t>(place.size()) == size, "an array of the encoder's result has another size");
    return place.data();
}

// groups: ((start, stop, unit, coded), ...) of the first `columns` rotated coordinates; limits: largest, length, base, underflown.
void encode_into(AnyArray weight, const std::string& name, std::optional<Floats> bias, Doubles centre, Doubles mean, Floats back,
                 int64_t columns, nb::sequence groups, nb::tuple result, nb::tuple limits, int threads, const std::string& isa) {
    EncodeTask task;
    const StoredRows rows = rows_of(weight, name);
    task.weight = rows.data, task.kind = rows.kind, task.vocab = rows.vocab, task.dim = rows.dim;
    const size_t dim = static_cast<size_t>(task.dim);
    check(centre.size() == dim && mean.size() == dim && back.size() == dim * dim, "centre, mean [dim], back [dim, dim]");
    check(!bias || bias->size() == weight.shape(0), "bias must be [vocab]");
    check(0 < columns && columns <= task.dim, "columns must be 1 to dim");
    task.bias = bias ? bias->data() : nullptr;
    task.centre = centre.data(), task.mean = mean.data(), task.back = back.data();
    task.columns = columns;
    task.largest = nb::cast<double>(limits[0]), task.largest_length = nb::cast<double>(limits[1]);
    task.largest_base = nb::cast<double>(limits[2]), task.underflown = nb::cast<double>(limits[3]);
    int64_t coded = 0;
    for (nb::handle item : groups) {
        const auto [start, stop, unit, has_codes] = nb::cast<std::tuple<int64_t, int64_t, double, bool>>(item);
        check(0 <= start && start < stop && stop <= columns, "a group lies within the coordinates");
        task.groups.push_back({start, stop, unit, has_codes ? 4 * task.words : -1});
        task.words += has_codes ? (stop - start + 3) / 4 : 0;
        coded += has_codes;
    }
    check(task.groups.size() <= kMostGroups, "too many groups");
    const int64_t padded = in_blocks(task.vocab), each = padded * static_cast<int64_t>(task.groups.size());
    task.to = {place_of<uint8_t>(result[0], task.words * 4 * padded), place_of<float>(result[1], coded * padded),
               place_of<float>(result[2], each), place_of<float>(result[3], each), place_of<float>(result[4], padded),
               place_of<float>(result[5], padded), place_of<float>(result[6], padded), place_of<uint8_t>(result[7], padded)};
    const Kernels* kernels = kernels_for(isa.c_str());
    check(kernels != nullptr, "this CPU does not have that instruction set");
    unlocked([&] { encode(task, thread_count(threads), kernels->isa); });
}

// <row, x_q> for all rows and a few queries, [n][vocab], in float64.
void products_into(AnyArray weight, const std::string& name, Doubles hidden, Place<double> out, int threads, const std::string& isa) {
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

}  // namespace

void bind_encode(nb::module_& m) {
    m.def("encode_into", &encode_into, nb::arg("weight"), nb::arg("kind"), nb::arg("bias").none(), nb::arg("centre"),
          nb::arg("mean"), nb::arg("back"), nb::arg("columns"), nb::arg("groups"), nb::arg("result"), nb::arg("limits"),
          nb::arg("threads") = 0, nb::arg("isa") = "");
    m.def("products_into", &products_into, nb::arg("weight"), nb::arg("kind"), nb::arg("hidden"), nb::arg("out"),
          nb::arg("threads") = 0, nb::arg("isa") = "");
}

}  // namespace headlong
