// The native module, headlong._native: who binds what is in the other files of this folder.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/arguments.h"
#include "bind/without_gil.h"
#include "kernels/levels.h"
#include "runtime/pool.h"
#include "runtime/processors.h"

using namespace headlong;

// Each adds what its file binds.
namespace headlong {
void bind_adaptive(nb::module_& m);
void bind_blocks(nb::module_& m);
void bind_codes(nb::module_& m);
void bind_descent(nb::module_& m);
void bind_executor(nb::module_& m);
void bind_experts(nb::module_& m);
void bind_kernels(nb::module_& m);
void bind_losses(nb::module_& m);
void bind_marks(nb::module_& m);
void bind_reader(nb::module_& m);
}  // namespace headlong

NB_MODULE(_native, m) {
    nb::set_leak_warnings(false);  // an engine that a daemon thread still reads with at the end is no leak
    learn_main_thread();
    m.doc() = "Kernels and the plan executor; see headlong.native for what they compute.";
    m.def("levels", [] {
        std::vector<std::string> names;
        for (const char* const* p = levels(); *p != nullptr; ++p) names.push_back(*p);
        return names;
    });
    m.def("processors", &processors);
    m.def("tell_way", &tell_way, nb::arg("way"));
    m.def("forget_ways", &forget_ways);
    m.def("team_rounds", &team_rounds);
    m.def("threads_at_hand", &threads_at_hand);
    m.def("processors_of_groups", &processors_of_groups, nb::arg("root"));
    bind_executor(m);
    bind_reader(m);
    bind_kernels(m);
    bind_losses(m);
    bind_experts(m);
    bind_descent(m);
    bind_marks(m);
    bind_blocks(m);
    bind_codes(m);
    bind_adaptive(m);
}
