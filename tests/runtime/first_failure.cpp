// A call of two pieces: one runs out of memory, the other goes on until the call is stopped and says so. What the call throws is
// the first. A thread that has failed gets every lock late here, so that one that was stopped can be faster.
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <new>
#include <thread>

#include "runtime/pool.h"
#include "runtime/processors.h"

namespace {
thread_local bool late = false;
}

extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
    static const auto lock = reinterpret_cast<int (*)(pthread_mutex_t*)>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
    if (late) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return lock(mutex);
}

int headlong::processors() { return 2; }  // whatever this machine has

int main() {
    headlong::Call call;
    headlong::role() = {&call, true};
    std::atomic<int> begun{0};
    try {
        headlong::run_parallel(2, [&](int piece) {
            for (++begun; begun < 2;) std::this_thread::yield();
            late = piece == 0;
            if (piece == 0) throw std::bad_alloc();
            for (;;) headlong::check_in();
        });
    } catch (const std::bad_alloc&) {
        std::puts("bad_alloc");
    } catch (const headlong::Interrupted&) {
        std::puts("Interrupted");
    }
}
