// Work without the interpreter's lock.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>
#include <type_traits>

#include "runtime/interrupts.h"

namespace headlong {

// Lets go of the interpreter's lock until come_back(), an ordinary function: what CPython does to a thread that asks for the
// lock of an interpreter at its end must not pass through a destructor.
class Unlocked {
  public:
    Unlocked();
    // Takes the lock again, and throws what the work threw; a Python exception if a signal's handler raised one meanwhile. A
    // thread that comes back when the interpreter is at its end stays here for good.
    void come_back(std::exception_ptr failure);

    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

  private:
    static bool signalled(void* self);

    PyThreadState* state_;
    Role before_;
    Call call_;
};

// work(), without the interpreter's lock; signals are heard at every turn if this is Python's main thread.
template <typename Work>
auto unlocked(Work&& work) -> std::invoke_result_t<Work&> {
    using Result = std::invoke_result_t<Work&>;
    Unlocked guard;
    std::exception_ptr failure;
    if constexpr (std::is_void_v<Result>) {
        try {
            work();
        } catch (...) {
            failure = std::current_exception();
        }
        guard.come_back(failure);
    } else {
        Result result{};
        try {
            result = work();
        } catch (...) {
            failure = std::current_exception();
        }
        guard.come_back(failure);
        return result;
    }
}

// Learns which thread hears signals: Python's main thread.
void learn_main_thread();

}  // namespace headlong
