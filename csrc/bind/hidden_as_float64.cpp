// Hidden vectors as they come, in float64 and checked: one pass, where NumPy takes five, each of them expensive in cold caches.
#include "bind/arguments.h"
#include "bind/without_gil.h"

namespace headlong {
namespace {

using Places = nb::ndarray<double, nb::numpy, nb::c_contig, nb::device::cpu>;

// Writes the rows in float64 to `out` (None where they are that already); returns the size of the largest entry, infinity where
// one is not finite.
double widened(AnyArray rows, const std::string& name, std::optional<Places> out) {
    static const Kernels* kernels = kernels_for("");
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

void bind_widened(nb::module_& m) { m.def("widened", &widened, nb::arg("rows"), nb::arg("kind"), nb::arg("out").none()); }

}  // namespace headlong
