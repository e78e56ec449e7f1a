#include "bind/link.h"

#include <algorithm>
#include <cmath>

namespace headlong {
namespace {

// Two floats for each cell, its base and its slope, and how far float32 can be off; see links/table.py.
void set_table(const nb::tuple& link, Matrix& e, std::vector<nb::object>& kept, std::vector<std::vector<float>>& arrays) {
    check(nb::len(link) == 7, "a table link has seven parts");
    e.link_start = nb::cast<double>(link[1]);
    e.link_step = nb::cast<double>(link[2]);
    const Doubles values = nb::cast<Doubles>(link[3]);
    e.link_left = nb::cast<double>(link[4]);
    e.link_right = nb::cast<double>(link[5]);
    e.link_b = 2 * nb::cast<double>(link[6]);
    kept.push_back(nb::cast(values));
    e.link_values = values.data();
    check(values.ndim() == 1 && values.size() >= 2 && values.size() < (1 << 22), "a table has 2 to 2^22 values");
    const int64_t cells = static_cast<int64_t>(values.size()) - 1;
    double most = 0, steepest = std::max(e.link_left, e.link_right);
    std::vector<float> table(2 * (cells + 2));
    table[0] = static_cast<float>(e.link_values[0] - e.link_left * e.link_step);
    table[1] = static_cast<float>(e.link_left);
    for (int64_t i = 0; i <= cells; ++i) {
        const double rise = i < cells ? (e.link_values[i + 1] - e.link_values[i]) / e.link_step : e.link_right;
        check(rise > 0 && std::isfinite(rise) && std::isfinite(e.link_values[i]), "a table increases");
        table[2 * i + 2] = static_cast<float>(e.link_values[i]);
        table[2 * i + 3] = static_cast<float>(rise);
        most = std::max(most, std::fabs(e.link_values[i]));
        steepest = std::max(steepest, rise);
    }
    const double end = e.link_start + e.link_step * static_cast<double>(cells);
    const double reach = std::max(std::fabs(e.link_start), std::fabs(end)) + e.link_step;
    // Rounded bases and knots, a cell that rounding may have moved by one (f is continuous), the product and the sum.
    const double slop = 0x1p-20 * (most + steepest * reach) + e.link_b;
    check(e.link_left > 0 && e.link_step > 0 && e.link_b >= 0 && slop < 1e30, "a table increases within float32's range");
    e.link_a = steepest;
    arrays.push_back(std::move(table));
    e.link = {LinkForm::table, static_cast<float>(steepest * (1 + 0x1p-22)), 0.f};
    e.link.table = arrays.back().data();
    e.link.start = static_cast<float>(e.link_start);
    e.link.step = static_cast<float>(e.link_step);
    e.link.inverse = static_cast<float>(1 / e.link_step);
    e.link.cells = static_cast<float>(cells);
    e.link.slop = static_cast<float>(slop * (1 + 0x1p-22));
}

}  // namespace

void set_link(const nb::tuple& link, Matrix& e, std::vector<nb::object>& kept, std::vector<std::vector<float>>& arrays) {
    check(nb::len(link) == 3 || nb::len(link) == 7, "link must be (form, a, b) or a table's seven parts");
    const std::string form = nb::cast<std::string>(link[0]);
    if (form == "table") return set_table(link, e, kept, arrays);
    check(nb::len(link) == 3, "link must be (form, a, b)");
    e.link_a = nb::cast<double>(link[1]);
    e.link_b = nb::cast<double>(link[2]);
    check(form == "affine" || form == "softcap", "link must be affine, softcap or table");
    check(e.link_a > 0 && std::isfinite(e.link_a) && std::isfinite(e.link_b), "a link is increasing: its first number is positive");
    e.link = {link_form(form), static_cast<float>(e.link_a), static_cast<float>(e.link_b)};
}

}  // namespace headlong
