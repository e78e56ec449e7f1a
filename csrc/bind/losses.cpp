// Softmax cross-entropy over link(z) and its gradient, for rows of logits, and the link as heads train it; see headlong.native. Rows are shared
// out over threads, always the same rows to the same thread: sums do not depend on who was first.
#include <algorithm>

#include "bind/arguments.h"
#include "bind/without_gil.h"
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

template <typename Work>
void share_rows(int64_t rows, int threads, const Work& work) {
    const int n = static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(threads, rows)));
    run_parallel(n, [&](int t) {
        const int64_t first = rows * t / n, last = rows * (t + 1) / n;
        if (first < last) work(t, first, last);
    });
}

void check_rows(const Rows& logits, const Ids& target) {
    check(logits.ndim() == 2 && target.ndim() == 1 && target.shape(0) == logits.shape(0), "logits [rows, vocab], target [rows]");
    for (size_t i = 0; i < target.size(); ++i)
        check(target.data()[i] >= 0 && target.data()[i] < static_cast<int64_t>(logits.shape(1)), "target out of range");
}

nb::tuple link_losses_of(Rows logits, Ids target, nb::tuple link, int threads, const std::string& isa) {
    const Kernels* kernels = level_of(isa).kernels;
    check_rows(logits, target);
    std::vector<float> table;
    const Link rule = training_link(link, table);
    const size_t rows = target.size();
    const auto vocab = static_cast<int64_t>(logits.shape(1));
    std::vector<double> lse(rows), at(rows);
    unlocked([&] {
        share_rows(rows, thread_count(threads), [&](int, int64_t first, int64_t last) {
            for (int64_t r = first; r < last; ++r) {
                check_in();
                const float* row = logits.data() + r * vocab;
                lse[r] = kernels->link_lse(row, vocab, rule);
                at[r] = kernels->link_at(row[target.data()[r]], rule);
            }
        });
    });
    return nb::make_tuple(owned(std::move(lse), {rows}), owned(std::move(at), {rows}));
}

nb::object link_gradients_of(Rows logits, Ids target, Doubles lse, Floats scale, nb::tuple link, int threads,
                             const std::string& isa) {
    const Kernels* kernels = level_of(isa).kernels;
    check_rows(logits, target);
    check(lse.size() == target.size() && scale.size() == target.size(), "lse [rows], scale [rows]");
    std::vector<float> table;
    const Link rule = training_link(link, table);
    // Logits become gradients; of each thread the two rows of sums that kernels/common/loss.inl says.
    const size_t cells = rule.form == LinkForm::table ? static_cast<size_t>(rule.cells) + 2 : 1;
    const int count = thread_count(threads);
    const auto vocab = static_cast<int64_t>(logits.shape(1));
    std::vector<std::vector<double>> each(count);
    unlocked([&] {
        share_rows(static_cast<int64_t>(target.size()), count, [&](int t, int64_t first, int64_t last) {
            each[t].assign(2 * cells, 0.0);
            double* const sums[2] = {each[t].data(), each[t].data() + cells};
            for (int64_t r = first; r < last; ++r) {
                check_in();
                kernels->link_gradient(logits.data() + r * vocab, vocab, rule, lse.data()[r], target.data()[r], scale.data()[r], sums);
            }
        });
    });
    std::vector<double> all(2 * cells, 0.0);
    for (const std::vector<double>& one : each)
        for (size_t i = 0; i < one.size(); ++i) all[i] += one[i];
    return owned(std::move(all), {2, cells});
}

}  // namespace

void bind_losses(nb::module_& m) {
    m.def("link_losses", &link_losses_of, nb::arg("logits"), nb::arg("target"), nb::arg("link"), nb::arg("threads") = 0,
          nb::arg("isa") = "");
    m.def("link_gradients", &link_gradients_of, nb::arg("logits"), nb::arg("target"), nb::arg("lse"), nb::arg("scale"),
          nb::arg("link"), nb::arg("threads") = 0, nb::arg("isa") = "");
}

}  // namespace headlong
