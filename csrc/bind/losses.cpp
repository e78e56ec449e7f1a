// Losses of heads over a link, and the link as heads train it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>

#include "bind/arguments.h"
#include "bind/without_gil.h"
#include "losses/losses.h"
#include "runtime/pool.h"

namespace headlong {
namespace {

using Rows = nb::ndarray<float, nb::numpy, nb::c_contig, nb::device::cpu>;

// A link as heads train it, its table laid out in `table`: ("affine", a, b), ("softcap", cap, 0), ("gss", centre, power),
// ("table", start, step, base, slope) with the cells of kernels/kernels.h.
Link training_link(const nb::tuple& link, std::vector<float>& table) {
    check(nb::len(link) == 3 || nb::len(link) == 5, "a link is (form, a, b) or (\"table\", start, step, base, slope)");
    const std::string form = nb::cast<std::string>(link[0]);
    const double a = nb::cast<double>(link[1]), b = nb::cast<double>(link[2]);
    const float fa = static_cast<float>(a), fb = static_cast<float>(b);
    if (form != "table") {
        check(nb::len(link) == 3 && (form == "affine" || form == "softcap" || form == "gss"),
              "a link is affine, softcap, gss or table");
        check(std::isfinite(fa) && std::isfinite(fb), "a link's numbers are finite");
        return {link_form(form), fa, fb};
    }
    check(nb::len(link) == 5, "a table has start, step, base, slope");
    const Floats base = nb::cast<Floats>(link[3]), slope = nb::cast<Floats>(link[4]);
    check(base.ndim() == 1 && slope.ndim() == 1 && base.size() == slope.size() && base.size() >= 3 && base.size() < (1 << 22),
          "a table has 3 to 2^22 cells");
    check(std::isfinite(fa) && fb > 0 && std::isfinite(1 / fb), "a table has a start and a step above 0");
    Link out{LinkForm::table, 1.f, 0.f};
    table.resize(2 * base.size());
    for (size_t i = 0; i < base.size(); ++i) {
        table[2 * i] = base.data()[i];
        table[2 * i + 1] = slope.data()[i];
    }
    out.table = table.data();
    out.start = fa;
    out.step = fb;
    out.inverse = static_cast<float>(1 / b);
    out.cells = static_cast<float>(base.size() - 2);
    out.a = *std::max_element(slope.data(), slope.data() + slope.size());
    return out;
}

void check_rows(const Rows& logits, const Ids& target) {
    check(logits.ndim() == 2 && target.ndim() == 1 && target.shape(0) == logits.shape(0), "logits [rows, vocab], target [rows]");
    for (size_t i = 0; i < target.size(); ++i)
        check(target.data()[i] >= 0 && target.data()[i] < static_cast<int64_t>(logits.shape(1)), "target out of range");
}

nb::tuple link_losses_of(Rows logits, Ids target, nb::tuple link, int threads, const std::string& isa) {
    const Kernels* kernels = kernels_for(isa.c_str());
    check(kernels != nullptr, "this CPU does not have that instruction set");
    check_rows(logits, target);
    std::vector<float> table;
    const Link rule = training_link(link, table);
    const size_t rows = target.size();
    std::vector<double> lse(rows), at(rows);
    unlocked([&] {
        link_losses(*kernels, logits.data(), rows, logits.shape(1), target.data(), rule, thread_count(threads), lse.data(),
                    at.data());
    });
    return nb::make_tuple(owned(std::move(lse), {rows}), owned(std::move(at), {rows}));
}

nb::object link_gradients_of(Rows logits, Ids target, Doubles lse, Floats scale, nb::tuple link, int threads,
                             const std::string& isa) {
    const Kernels* kernels = kernels_for(isa.c_str());
    check(kernels != nullptr, "this CPU does not have that instruction set");
    check_rows(logits, target);
    check(lse.size() == target.size() && scale.size() == target.size(), "lse [rows], scale [rows]");
    std::vector<float> table;
    const Link rule = training_link(link, table);
    std::vector<double> sums;
    unlocked([&] {
        sums = link_gradients(*kernels, logits.data(), target.size(), logits.shape(1), target.data(), lse.data(),
                              scale.data(), rule, thread_count(threads));
    });
    const size_t cells = sums.size() / 2;
    return owned(std::move(sums), {2, cells});
}

}  // namespace

void bind_losses(nb::module_& m) {
    m.def("link_losses", &link_losses_of, nb::arg("logits"), nb::arg("target"), nb::arg("link"), nb::arg("threads") = 0,
          nb::arg("isa") = "");
    m.def("link_gradients", &link_gradients_of, nb::arg("logits"), nb::arg("target"), nb::arg("lse"), nb::arg("scale"),
          nb::arg("link"), nb::arg("threads") = 0, nb::arg("isa") = "");
}

}  // namespace headlong
