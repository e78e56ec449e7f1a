// The encoder for Python: arrays are made there and filled here.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "bind/arguments.h"
#include "bind/without_gil.h"
#include "encode/task.h"
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

std::vector<EncodePlane> planes_of(nb::handle list, int64_t n, int64_t* place, bool whole_words) {
    static const char* const names[] = {"absmax", "gaussian", "upper", "lower"};
    std::vector<EncodePlane> out;
    for (nb::handle item : nb::cast<nb::sequence>(list)) {
        const auto pair = nb::cast<nb::tuple>(item);
        const int bits = nb::cast<int>(pair[0]);
        const auto name = nb::cast<std::string>(pair[1]);
        int step = 0;
        while (step < 4 && name != names[step]) ++step;
        check(step < 4 && (bits == 1 || bits == 2 || bits == 4 || bits == 8), "a plane is (1, 2, 4 or 8 bits, its step)");
        check((bits == 8) == (step == 0), "8 bits, and they alone, go by absmax");
        out.push_back({bits, static_cast<Step>(step), *place});
        const int64_t bytes = plane_bytes(n, bits);
        *place += whole_words ? (bytes + 3) / 4 * 4 : bytes;
    }
    return out;
}

std::vector<EncodeGroup> groups_of(const nb::sequence& list, int64_t dim, int64_t* bytes, int64_t* planes, bool whole_words) {
    std::vector<EncodeGroup> out;
    for (nb::handle item : list) {
        const auto group = nb::cast<nb::tuple>(item);
        EncodeGroup one{nb::cast<int64_t>(group[0]), nb::cast<int64_t>(group[1]), nb::cast<double>(group[2]), {}, -1};
        check(0 <= one.start && one.start < one.stop && one.stop <= dim, "a group lies within the coordinates");
        one.planes = planes_of(group[3], one.stop - one.start, bytes, whole_words);
        *planes += static_cast<int64_t>(one.planes.size());
        out.push_back(std::move(one));
    }
    check(out.size() <= kMostGroups, "too many groups");
    return out;
}

// (coarse, fine, result); coarse, fine: ((start, stop, unit, planes), ...), a plane being (bits, step), a fine group made of whole
// coarse ones.
EncodeView view_of(const nb::tuple& asked, int64_t vocab, int64_t dim) {
    EncodeView view;
    int64_t coarse = 0, fine = 0;
    view.coarse = groups_of(nb::cast<nb::sequence>(asked[0]), dim, &view.words, &coarse, true);
    view.words /= 4;
    view.fine = groups_of(nb::cast<nb::sequence>(asked[1]), dim, &view.bytes, &fine, false);
    for (EncodeGroup& group : view.coarse)
        for (size_t f = 0; f < view.fine.size(); ++f) {
            if (group.stop <= view.fine[f].start || view.fine[f].stop <= group.start) continue;
            check(view.fine[f].start <= group.start && group.stop <= view.fine[f].stop, "a fine group is made of whole coarse ones");
            group.cover = static_cast<int>(f);
        }
    const auto result = nb::cast<nb::tuple>(asked[2]);
    const int64_t padded = in_blocks(vocab), each = padded * static_cast<int64_t>(view.coarse.size());
    view.to = {place_of<uint8_t>(result[0], view.words * 4 * padded), place_of<uint8_t>(result[1], view.bytes * vocab),
               place_of<float>(result[2], coarse * padded), place_of<float>(result[3], fine * padded),
               place_of<float>(result[4], each), place_of<float>(result[5], each), place_of<float>(result[6], each),
               place_of<float>(result[7], padded), place_of<float>(result[8], padded),
               place_of<float>(result[9], padded), place_of<float>(result[10], padded),
               place_of<uint8_t>(result[11], padded)};
    if (nb::cast<Place<double>>(result[12]).size() > 0) {
        int64_t squares = 0;
        for (const EncodeGroup& group : view.coarse) squares += (group.stop - group.start) * (group.stop - group.start);
        view.to.grams = place_of<double>(result[12], squares);
    }
    return view;
}

// views: as view_of takes them, of the first `columns` rotated coordinates; limits: largest, length, base, underflown.
void encode_into(AnyArray weight, const std::string& name, std::optional<Floats> bias, Doubles centre, Doubles mean, Floats back,
                 int64_t columns, nb::sequence views, nb::tuple limits, int threads, const std::string& isa) {
    EncodeTask task;
    task.kind = kind_of(name);
    task.weight = weight_of(weight, task.kind);
    task.vocab = static_cast<int64_t>(weight.shape(0)), task.dim = static_cast<int64_t>(weight.shape(1));
    const size_t dim = weight.shape(1);
    check(centre.size() == dim && mean.size() == dim && back.size() == dim * dim, "centre, mean [dim], back [dim, dim]");
    check(!bias || bias->size() == weight.shape(0), "bias must be [vocab]");
    check(0 < columns && columns <= task.dim, "columns must be 1 to dim");
    task.bias = bias ? bias->data() : nullptr;
    task.centre = centre.data(), task.mean = mean.data(), task.back = back.data();
    task.columns = columns;
    task.largest = nb::cast<double>(limits[0]), task.largest_length = nb::cast<double>(limits[1]);
    task.largest_base = nb::cast<double>(limits[2]), task.underflown = nb::cast<double>(limits[3]);
    for (nb::handle asked : views) task.views.push_back(view_of(nb::cast<nb::tuple>(asked), task.vocab, columns));
    const Kernels* kernels = kernels_for(isa.c_str());
    check(kernels != nullptr, "this CPU does not have that instruction set");
    unlocked([&] { encode(task, thread_count(threads), kernels->isa); });
}

// <row, x_q> for all rows and a few queries, [n][vocab], in float64.
void products_into(AnyArray weight, const std::string& name, Doubles hidden, Place<double> out, int threads, const std::string& isa) {
    const Kind kind = kind_of(name);
    const char* rows = static_cast<const char*>(weight_of(weight, kind));
    const int64_t vocab = static_cast<int64_t>(weight.shape(0)), dim = static_cast<int64_t>(weight.shape(1));
    check(hidden.ndim() == 2 && static_cast<int64_t>(hidden.shape(1)) == dim, "hidden must be [n, dim]");
    check(out.size() == hidden.shape(0) * weight.shape(0), "out must be [n, vocab]");
    const int n = static_cast<int>(hidden.shape(0));
    const int64_t wide = (dim + kWide - 1) / kWide * kWide, item = dim * item_bytes(kind);
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
                kernels->dot_block(rows + first * item, kind, dim, std::min(at_once, vocab - first), x.data(), n, scratch.data(),
                                   out.data() + first, vocab);
        });
    });
}

}  // namespace

void bind_encode(nb::module_& m) {
    m.def("encode_into", &encode_into, nb::arg("weight"), nb::arg("kind"), nb::arg("bias").none(), nb::arg("centre"),
          nb::arg("mean"), nb::arg("back"), nb::arg("columns"), nb::arg("views"), nb::arg("limits"),
          nb::arg("threads") = 0, nb::arg("isa") = "");
    m.def("products_into", &products_into, nb::arg("weight"), nb::arg("kind"), nb::arg("hidden"), nb::arg("out"),
          nb::arg("threads") = 0, nb::arg("isa") = "");
}

}  // namespace headlong
