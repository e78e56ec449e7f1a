#include "pool.h"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headlong {
namespace {

// A query takes a tenth of a millisecond, so a worker spins briefly for the next one before it sleeps; not longer,
// because a spinning thread slows down everyone else on a small machine.
constexpr int kSpins = 20000;

inline void pause() {
#if defined(__x86_64__)
    _mm_pause();
#else
    std::this_thread::yield();
#endif
}

class Pool {
  public:
    void run(int n, const std::function<void(int)>& work) {
        grow(n - 1);
        work_ = &work;
        pending_.store(n - 1, std::memory_order_relaxed);
        {
            std::lock_guard<std::mutex> lock(sleep_);
            round_.store((round_.load(std::memory_order_relaxed) / kMost + 1) * kMost + n, std::memory_order_release);
        }
        wake_.notify_all();
        work(0);
        for (int spin = 0; pending_.load(std::memory_order_acquire) > 0; ++spin) {
            if (spin < kSpins) pause();
            else std::this_thread::yield();
        }
    }

  private:
    void grow(int workers) {
        while (static_cast<int>(threads_.size()) < workers) {
            int index = static_cast<int>(threads_.size()) + 1;
            int64_t seen = round_.load(std::memory_order_relaxed);
            threads_.emplace_back([this, index, seen] { serve(index, seen); });
            threads_.back().detach();
        }
    }

    void serve(int index, int64_t seen) {
        for (;;) {
            for (int spin = 0; spin < kSpins && round_.load(std::memory_order_acquire) == seen; ++spin) pause();
            if (round_.load(std::memory_order_acquire) == seen) {
                std::unique_lock<std::mutex> lock(sleep_);
                wake_.wait(lock, [&] { return round_.load(std::memory_order_acquire) != seen; });
            }
            seen = round_.load(std::memory_order_acquire);
            // The round says in one word how many it wants, so that a late worker cannot mix two rounds up; while one
            // that is wanted has not finished, the caller waits and work_ stays.
            if (index < seen % kMost) {
                (*work_)(index);
                pending_.fetch_sub(1, std::memory_order_release);
            }
        }
    }

    std::vector<std::thread> threads_;
    std::mutex sleep_;
    std::condition_variable wake_;
    static constexpr int64_t kMost = 1024;

    std::atomic<int64_t> round_{0};  // number of the round * kMost + threads it wants
    std::atomic<int> pending_{0};
    const std::function<void(int)>* work_ = nullptr;
};

std::mutex busy;
Pool* pool = nullptr;  // never destroyed: its threads may outlive main
pid_t owner = 0;

}  // namespace

void run_parallel(int n, const std::function<void(int)>& work) {
    if (n > 1 && n < 1024) {
        std::unique_lock<std::mutex> lock(busy, std::try_to_lock);
        if (lock.owns_lock()) {
            if (owner != getpid()) {
                pool = new Pool;
                owner = getpid();
            }
            pool->run(n, work);
            return;
        }
    }
    for (int i = 0; i < n; ++i) work(i);
}

int thread_count(int asked) {
    if (asked > 0) return asked;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    unsigned n = std::thread::hardware_concurrency();
    return n == 0 ? 1 : static_cast<int>(n);
}

}  // namespace headlong
