// The native module, headlong._native: who binds what is in the other files of this folder.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/arguments.h"
#include "bind/without_gil.h"
#include "kernels/kernels.h"
#include "runtime/pool.h"
#include "runtime/processors.h"
#include "runtime/trace.h"

using namespace headlong;

namespace headlong {
void bind_adaptive(nb::module_& m);  // adaptive.cpp
}

NB_MODULE(_native, m) {
    nb::set_leak_warnings(false);  // an engine that a daemon thread still reads with at the end is no leak
    learn_main_thread();
    m.doc() = "Kernels and the plan executor; see headlong.native for what they compute.";
    m.def("levels", [] {
        std::vector<std::string> names;
        for (const char* const* p = levels(); *p != nullptr; ++p) names.push_back(*p);
        return names;
    });
    // Marks of this thread's calls from now on; and those since, as (what ended, seconds of time.perf_counter's clock).
    m.def("trace_begin", [] {
        static thread_local Trace kept;
        kept.marks.clear();
        own_trace() = &kept;
    });
    m.def("trace_end", [] {
        nb::list marks;
        for (const auto& [what, at] : own_trace() == nullptr ? Trace{}.marks : own_trace()->marks)
            marks.append(nb::make_tuple(what, static_cast<double>(at) * 1e-9));
        own_trace() = nullptr;
        return marks;
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
    bind_widened(m);
    bind_blocks(m);
    bind_codes(m);
    bind_direct_call(m);
    bind_adaptive(m);
}
