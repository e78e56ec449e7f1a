// Hidden vectors as they come, in float64 and checked: one pass, where NumPy takes five, each of them dear in cold caches.
#include <limits>

#include "binding.h"

namespace headlong {
namespace {

#include "stored.inl"

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Writes value(0), value(1), ... where there is a place for them; returns the largest size, infinity where one is not finite.
template <typename Value>
double widen(int64_t n, double* out, const Value& value) {
    double most = 0;
    bool finite = true;
    for (int64_t i = 0; i < n; ++i) {
        const double x = value(i), size = x < 0 ? -x : x;
        if (out != nullptr) out[i] = x;
        finite &= size < kInfinity;
        most = size > most ? size : most;
    }
    return finite ? most : kInfinity;
}

// The rows in float64, None where they are that already, and the size of the largest entry.
nb::tuple widened(AnyArray rows, const std::string& name) {
    check(rows.ndim() == 2, "rows must be [batch, dim]");
    const int64_t n = static_cast<int64_t>(rows.size());
    if (name == "float64") {
        check(rows.itemsize() == 8, "rows must be float64");
        const double* doubles = static_cast<const double*>(rows.data());
        return nb::make_tuple(nb::none(), widen(n, nullptr, [&](int64_t i) { return doubles[i]; }));
    }
    const Kind kind = kind_of(name);
    const void* data = weight_of(rows, kind);
    const float* floats = static_cast<const float*>(data);
    std::vector<double> out(n);
    const double most = kind == Kind::f32
                            ? widen(n, out.data(), [&](int64_t i) { return static_cast<double>(floats[i]); })
                            : widen(n, out.data(), [&](int64_t i) { return static_cast<double>(one_float(data, kind, i)); });
    return nb::make_tuple(owned(std::move(out), {rows.shape(0), rows.shape(1)}), most);
}

}  // namespace

void bind_widened(nb::module_& m) { m.def("widened", &widened, nb::arg("rows"), nb::arg("kind")); }

}  // namespace headlong
