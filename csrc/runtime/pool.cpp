#include "runtime/pool.h"

#if defined(__linux__)
#include <sched.h>
#endif
#if !defined(_WIN32)
#include <unistd.h>
#endif

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

// A query takes a tenth of a millisecond, so a worker spins for the next one before it sleeps; not longer, because a
// spinning thread slows down everyone else on a small machine. Who waits for a started worker soon gives way instead: on
// a busy machine that worker may be waiting for this very processor.
constexpr int kIdleSpins = 20000, kWaitSpins = 500;

// A forked child has none of its parent's threads. Windows does not fork.
inline int process() {
#if defined(_WIN32)
    return 1;
#else
    return static_cast<int>(getpid());
#endif
}

inline void pause() {
#if defined(__x86_64__)
    _mm_pause();
#else
    std::this_thread::yield();
#endif
}

// A round is a counter that hands out indices: the caller and every worker that is awake take the next one until none is
// left. A worker that wakes late finds nothing to do and nobody waiting for it.
class Pool {
  public:
    void run(int n, const std::function<void(int)>& work) {
        grow(n - 1);
        work_ = &work;
        done_.store(0, std::memory_order_relaxed);
        const int64_t round = (ticket_.load(std::memory_order_relaxed) / kMost / kMost + 1) * kMost + n;
        {
            std::lock_guard<std::mutex> lock(sleep_);
            ticket_.store(round * kMost, std::memory_order_release);
        }
        wake_.notify_all();
        take_part(round);
        for (int spin = 0; done_.load(std::memory_order_acquire) < n; ++spin) {
            if (spin < kWaitSpins) pause();
            else std::this_thread::yield();
        }
    }

  private:
    void take_part(int64_t round) {
        int64_t ticket = ticket_.load(std::memory_order_acquire);
        while (ticket / kMost == round && ticket % kMost < round % kMost) {
            if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
            (*work_)(static_cast<int>(ticket % kMost));  // the caller waits for it, so work_ stays
            done_.fetch_add(1, std::memory_order_release);
            ticket = ticket_.load(std::memory_order_acquire);
        }
    }

    void grow(int workers) {
        while (static_cast<int>(threads_.size()) < workers) {
            int64_t seen = ticket_.load(std::memory_order_relaxed) / kMost;
            threads_.emplace_back([this, seen] { serve(seen); });
            threads_.back().detach();
        }
    }

    void serve(int64_t seen) {
        const auto fresh = [&] { return ticket_.load(std::memory_order_acquire) / kMost != seen; };
        for (;;) {
            for (int spin = 0; spin < kIdleSpins && !fresh(); ++spin) pause();
            if (!fresh()) {
                std::unique_lock<std::mutex> lock(sleep_);
                wake_.wait(lock, fresh);
            }
            seen = ticket_.load(std::memory_order_acquire) / kMost;
            take_part(seen);
        }
    }

    static constexpr int64_t kMost = 1024;

    std::vector<std::thread> threads_;
    std::mutex sleep_;
    std::condition_variable wake_;
    std::atomic<int64_t> ticket_{0};  // (number of the round * kMost + indices it has) * kMost + the next index
    std::atomic<int> done_{0};
    const std::function<void(int)>* work_ = nullptr;
};

std::mutex busy;
Pool* pool = nullptr;  // never destroyed: its threads may outlive main
int owner = 0;

}  // namespace

void run_parallel(int n, const std::function<void(int)>& work) {
    if (n > 1 && n < 1024) {
        std::unique_lock<std::mutex> lock(busy, std::try_to_lock);
        if (lock.owns_lock()) {
            if (owner != process()) {
                pool = new Pool;
                owner = process();
            }
            pool->run(n, work);
            return;
        }
    }
    for (int i = 0; i < n; ++i) work(i);
}

int thread_count(int asked) {
    if (asked > 0) return asked;
#if defined(__linux__)  // the processors that this process may run on, where the system says
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    unsigned n = std::thread::hardware_concurrency();
    return n == 0 ? 1 : static_cast<int>(n);
}

}  // namespace headlong
