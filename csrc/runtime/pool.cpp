#include "runtime/pool.h"

#if !defined(_WIN32)
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <new>
#include <thread>

#include "runtime/host_team.h"

namespace headlong {
namespace {

using Clock = std::chrono::steady_clock;

// A query takes a tenth of a millisecond, so who waits looks out for a while before it sleeps: waking a thread costs as much
// as reading a thousand rows. It gives way all the while, because whoever else wants this processor, such as another
// library's threads that look out for their own work, would otherwise wait for it.
constexpr auto kLookOut = std::chrono::microseconds(250);

constexpr int64_t kMost = 1024;  // pieces of a round
constexpr int kMostWorkers = 1023;

// A forked child has none of its parent's threads. Windows does not fork.
int process() {
#if defined(_WIN32)
    return 1;
#else
    return static_cast<int>(getpid());
#endif
}

void breathe() {
#if defined(__x86_64__)
    constexpr int pauses = 32;
    for (int i = 0; i < pauses; ++i) __builtin_ia32_pause();  // <immintrin.h> takes as long to compile as this file
#endif
    std::this_thread::yield();
}

// Looks out until `ready` or the time is over; says which.
template <typename Ready>
bool look_out(const Ready& ready) {
    for (const auto end = Clock::now() + kLookOut; Clock::now() < end; breathe())
        if (ready()) return true;
    return ready();
}

// Signals go to the threads that Python knows, but for those that a fault raises in the thread itself.
class SignalsElsewhere {
#if defined(_WIN32)
#else
  public:
    SignalsElsewhere() {
        sigset_t all;
        sigfillset(&all);
        for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGPROF}) sigdelset(&all, fault);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsElsewhere() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  private:
    sigset_t before_;
#endif
};

// Where one thread sleeps until another wakes it. Who wakes it has changed what it waits for first.
class Bed {
  public:
    template <typename Ready>
    void sleep(const Ready& ready) {
        std::unique_lock<std::mutex> lock(mutex_);
        asleep_.store(true);  // before `ready` is looked at, as wake() looks at it after the change
        while (!ready()) wake_.wait(lock);
        asleep_.store(false);
    }
    // Sleeps for `time` at most.
    template <typename Ready>
    void nap(const Ready& ready, std::chrono::milliseconds time) {
        std::unique_lock<std::mutex> lock(mutex_);
        asleep_.store(true);
        wake_.wait_for(lock, time, ready);
        asleep_.store(false);
    }
    void wake() {
        if (!asleep_.load()) return;
        std::lock_guard<std::mutex> lock(mutex_);
        wake_.notify_one();
    }

  private:
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<bool> asleep_{false};
};

std::atomic<int> told_way{-1};
std::atomic<bool> ways_are_over{false};

// A round is a counter that hands out pieces: the caller and the workers that it asked for take the next one until none is
// left. A worker that comes late finds nothing to do and nobody waiting for it. Where the host's team does more work in a second
// than our workers, its threads take their place.
class Pool {
  public:
    void run(int n, void (*work)(void*, int), void* with) {
        const int wanted = std::min({n - 1, kMostWorkers, processors() - 1});
        const int told = told_way.load(std::memory_order_relaxed);
        const bool either = told != 0 && team_.has(wanted + 1), choice = either && told != 1;
        if (choice && ways_are_over.exchange(false)) situations_ = {};
        const int64_t begun = choice ? now() : 0;
        Ways& ways = situations_.at(begun);
        const bool team = either && (!choice || ways.way() == 1);
        measured_ = choice && ways.measures();
        work_ = work;
        with_ = with;
        call_ = role().call;
        failed_.store(false, std::memory_order_relaxed);
        done_.store(0, std::memory_order_relaxed);
        worked_.store(0, std::memory_order_relaxed);
        wanted_.store(team ? 0 : wanted, std::memory_order_relaxed);
        seats_.store(wanted, std::memory_order_relaxed);
        const int64_t round = (ticket_.load(std::memory_order_relaxed) / kMost / kMost + 1) * kMost + n;
        ticket_.store(round * kMost);
        if (team) {
            team_.run([](void* self) { static_cast<Pool*>(self)->join(); }, this);
            ++team_rounds;
        } else {
            grow(wanted);
            for (int i = 0; i < std::min(wanted, workers_); ++i) beds_[i]->wake();
            take_part(round);
            wait_for(n);
        }
        if (choice) {
            const int64_t ended = now();
            ways.add(ended - begun, measured_ ? worked_.load() : -1, std::min(wanted, workers_));
            situations_.end(ended);
        }
        if (!failed_.load(std::memory_order_relaxed)) return;
        const std::exception_ptr failure = std::move(failure_);
        failure_ = nullptr;
        std::rethrow_exception(failure);
    }

    std::atomic<int64_t> team_rounds{0};

  private:
    static int64_t now() { return Clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

    // A thread of the host's team. What else it needs was written before the ticket that it reads first.
    void join() {
        const int64_t round = ticket_.load() / kMost;
        if (is_main_thread()) {  // no other has a team
            take_part(round);
            wait_for(round % kMost);
        } else if (seats_.fetch_sub(1) > 0) {
            role() = {call_, false};
            take_part(round);
            role() = {};
        }
    }

    void take_part(int64_t round) {
        int64_t ticket = ticket_.load();
        while (ticket / kMost == round && ticket % kMost < round % kMost) {
            if (!ticket_.compare_exchange_weak(ticket, ticket + 1)) continue;
            one(static_cast<int>(ticket % kMost));  // the caller waits for it, so what it needs stays
            if (done_.fetch_add(1) + 1 == round % kMost) caller_.wake();
            ticket = ticket_.load();
        }
    }

    void one(int piece) noexcept {
        if (failed_.load(std::memory_order_relaxed)) return;
        const int64_t begun = measured_ ? thread_time() : 0;
        try {
            work_(with_, piece);
        } catch (...) {
            keep(std::current_exception());
            // Only now: what others throw because they are stopped must not come first.
            if (Call* call = call_.load()) call->stop();
        }
        if (measured_) worked_.fetch_add(thread_time() - begun);
    }

    // The first failure is the round's.
    void keep(std::exception_ptr failure) {
        std::lock_guard<std::mutex> lock(failing_);
        if (failed_.load(std::memory_order_relaxed)) return;
        failure_ = std::move(failure);
        failed_.store(true, std::memory_order_relaxed);
    }

    // A worker that was begun may itself be waiting for this very processor: give way, and sleep soon.
    void wait_for(int n) {
        const auto all = [&] { return done_.load() == n; };
        if (all() || look_out(all)) return;
        Call* call = call_.load();
        if (call == nullptr) return caller_.sleep(all);
        while (!all()) {
            caller_.nap(all, std::chrono::milliseconds(50));
            call->ask();  // what was begun hears of it, and throws
        }
    }

    // As many workers as are asked for and the system grants.
    void grow(int workers) {
        if (workers_ >= workers) return;
        [[maybe_unused]] SignalsElsewhere quiet;
        try {
            while (workers_ < workers) {
                auto bed = std::make_unique<Bed>();
                std::thread([this, index = workers_, own = bed.get()] { serve(index, *own); }).detach();
                beds_[workers_++] = bed.release();  // never deleted: its thread may outlive main
            }
        } catch (...) {  // no thread or no memory for one: those that are there have to do
        }
    }

    void serve(int index, Bed& bed) {
        int64_t seen = 0;
        const auto asked = [&] {
            return ticket_.load() / kMost != seen && index < wanted_.load(std::memory_order_relaxed);
        };
        for (;;) {
            if (!look_out(asked)) bed.sleep(asked);
            seen = ticket_.load() / kMost;
            role() = {call_, false};
            take_part(seen);
        }
    }

    HostTeam team_;
    Situations situations_;
    bool measured_ = false;
    std::atomic<int> seats_{0};  // of this round, for threads of the team
    std::atomic<int64_t> worked_{0};  // ns of processor time, in a round that is measured
    Bed* beds_[kMostWorkers] = {};
    int workers_ = 0;
    Bed caller_;
    std::atomic<int64_t> ticket_{0};  // (number of the round * kMost + pieces it has) * kMost + the next piece
    std::atomic<int> wanted_{0};  // of our workers
    std::atomic<int> done_{0};
    void (*work_)(void*, int) = nullptr;
    void* with_ = nullptr;
    std::atomic<Call*> call_{nullptr};
    std::atomic<bool> failed_{false};
    std::mutex failing_;
    std::exception_ptr failure_;
};

std::atomic<int> user{0};  // the process that has the pool at work; a child of a fork is another one
Pool* pool = nullptr;      // never destroyed: its threads may outlive main
int owner = 0;

}  // namespace

Role& role() {
    thread_local Role own;
    return own;
}

void run_pieces(int n, void (*work)(void*, int), void* with) {
    const int self = process();
    int found = user.load();
    if (n > 1 && n < kMost && found != self && user.compare_exchange_strong(found, self)) {
        struct Leave {
            ~Leave() { user.store(0); }
        } leave;
        if (owner != self) {
            pool = new Pool;
            owner = self;
        }
        return pool->run(n, work, with);
    }
    for (int i = 0; i < n; ++i) work(with, i);
}

void tell_way(int way) { told_way.store(way); }

void forget_ways() { ways_are_over.store(true); }

int64_t team_rounds() { return owner == process() ? pool->team_rounds.load() : 0; }

}  // namespace headlong
