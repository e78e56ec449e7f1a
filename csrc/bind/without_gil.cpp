#include "bind/without_gil.h"

#include <atomic>
#include <chrono>
#include <thread>

namespace nb = nanobind;

namespace headlong {
namespace {

std::atomic<unsigned long> main_thread{0};

// PyEval_RestoreThread, for a daemon thread that may come back while the interpreter ends. CPython up to 3.13 then ends the
// thread by pthread_exit, which unwinds its stack as if by an exception, and aborts the process where that meets a function
// that throws nothing. It ends here instead: the thread sleeps until the process is gone, as CPython 3.14 has it.
void take_lock(PyThreadState* state) {
    try {
        PyEval_RestoreThread(state);
    } catch (...) {
        for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
}

}  // namespace

Unlocked::Unlocked()
    : before_(role()), call_(PyThread_get_thread_ident() == main_thread.load() ? signalled : nullptr, this) {
    role() = {&call_, true};
    state_ = PyEval_SaveThread();
}

bool Unlocked::signalled(void* with) {
    auto* self = static_cast<Unlocked*>(with);
    take_lock(self->state_);
    const bool raised = PyErr_CheckSignals() != 0;
    self->state_ = PyEval_SaveThread();
    return raised;
}

void Unlocked::come_back(std::exception_ptr failure) {
    role() = before_;
    take_lock(state_);
    if (PyErr_Occurred() != nullptr) throw nb::python_error();  // a signal's handler raised it
    if (failure) std::rethrow_exception(failure);
}

void learn_main_thread() {
    main_thread = nb::cast<unsigned long>(nb::module_::import_("threading").attr("main_thread")().attr("ident"));
}

}  // namespace headlong
