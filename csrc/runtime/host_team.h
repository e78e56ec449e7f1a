// The OpenMP team of the host process, where it has one: whose threads look out for work on the very processors that ours need.
#pragma once

#if !defined(_WIN32)
#include <dlfcn.h>
#include <pthread.h>
#include <time.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>

#include "runtime/text_file.h"

namespace headlong {

inline bool is_main_thread() {
#if defined(_WIN32)
    return true;
#elif defined(__linux__)
    static thread_local const bool main = syscall(SYS_gettid) == getpid();
    return main;
#else
    return pthread_main_np() != 0;
#endif
}

// Made in the process that uses it.
class HostTeam {
  public:
    // Whether this thread has a team of so many at least. A runtime makes a team for each thread that asks; Python's other
    // threads may be dozens, so the main thread alone does.
    bool has(int threads) {
#if defined(_WIN32)
        return threads < 0;
#else
        if (!is_main_thread() || forked_) return false;
        constexpr int often = 64;  // PyTorch may be imported at any time, and a fruitless search takes a microsecond
        if (parallel_ == nullptr && asked_++ % often == 0) find();
        return parallel_ != nullptr && threads_() >= threads;
#endif
    }

    // Calls member(with) once on each thread of the team, this one too, and waits for all of them. The team stays as large as
    // the host has set it: another number would end threads of it or begin new ones, every time.
    void run(void (*member)(void*), void* with) { parallel_(member, with, 0, 0); }

  private:
#if !defined(_WIN32)
    // GNU's entry, which LLVM's and Intel's runtimes have as well. What the process has loaded for all is asked, so it is the
    // copy that PyTorch uses; nothing is loaded.
    void find() {
        *reinterpret_cast<void**>(&threads_) = dlsym(RTLD_DEFAULT, "omp_get_max_threads");
        if (threads_ != nullptr) *reinterpret_cast<void**>(&parallel_) = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    }
#endif

    // GNU's runtime would wait for the parent's threads in a child that has not begun another program. Linux marks such a child
    // (PF_FORKNOEXEC), whoever forked it and before whatever was imported.
    static bool is_forked() {
#if defined(__linux__)
        const std::string text = text_of("/proc/self/stat");
        const size_t name = text.rfind(')');
        unsigned long flags = 0x40;
        if (name != std::string::npos) std::sscanf(text.c_str() + name, ") %*c %*d %*d %*d %*d %*d %lu", &flags);
        return (flags & 0x40) != 0;
#else
        return false;
#endif
    }

    const bool forked_ = is_forked();
    unsigned asked_ = 0;
    void (*parallel_)(void (*)(void*), void*, unsigned, unsigned) = nullptr;
    int (*threads_)() = nullptr;
};

// The processor time of this thread.
inline int64_t thread_time() {
#if defined(_WIN32)
    return 0;
#else
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1'000'000'000 + now.tv_nsec;
#endif
}

// Whether more threads of this machine are ready to run than it has processors, `ours` that look out for work left out: one of a
// team would have to wait.
inline bool processors_are_taken(int ours) {
#if defined(__linux__)
    int running = 0;
    std::sscanf(text_of("/proc/loadavg").c_str(), "%*f %*f %*f %d/", &running);
    return running - ours > sysconf(_SC_NPROCESSORS_ONLN);
#else
    return ours < 0;
#endif
}

// Which of two ways of running rounds, ours (0) or the host's team (1), does more work in a second. Work is the processor time of
// all pieces, so that rounds of any size compare. The team is faster while its threads are awake, and far slower where they have
// to wait for a processor: then one call takes as long as a hundred. So it is left as soon as two rounds take long and more threads are
// ready to run than there are processors, and not tried before that is over. The slower way is tried for a few calls in a hundred.
class Ways {
  public:
    explicit Ways(int first, bool (*taken)(int) = processors_are_taken) : way_(first), better_(first), taken_(taken) {}

    int way() const { return way_; }

    // Whether the next round is to be measured: all of a trial, or when the last one took long; some otherwise. None on a busy machine,
    // where Linux gives the processor to another thread when a thread asks for its own time and has had its share.
    bool measures() { return !busy_ && (way_ != better_ || slow_ || rounds_++ % kOneIn == 0); }

    // A round took `took` ns; work: what it did in ns of processor time, or -1 if that was not measured. Then so many of our workers
    // may look out for more.
    void add(int64_t took, int64_t work, int workers) {
        spent_ += took;
        const bool again = slow_;
        slow_ = took > kSlow;
        if (busy_ && spent_ < kRest) return;
        const bool fresh = last_ != way_;  // its threads had to wake up
        last_ = way_;
        if (work >= 0 && (!fresh || slow_)) {
            Speed& own = speed_[way_];
            const double counted = std::min(static_cast<double>(took), kMost);  // a round that was held up is one among many
            own.work += static_cast<double>(work) * counted / static_cast<double>(took);
            own.took += counted;
            if (own.took > kRemembered) own.work /= 2, own.took /= 2;
        }
        const int other = 1 - way_;
        if (way_ == 1 && again && slow_ && taken_(0)) {
            go(0);
            busy_ = true;
            return;
        }
        if (way_ != better_) {
            if (spent_ < kTrial) return;
            const double lost = 1 - speed_[way_].of(speed_[other]);  // of the trial's time
            patience_ = lost < kLittle ? kRest : std::min(2 * patience_, kLongest);
            rest_ = std::clamp(static_cast<int64_t>(kRepaid * lost * static_cast<double>(spent_)), kRest, patience_);
            go(speed_[way_].over(speed_[other]) ? way_ : other);
        } else if (busy_ || spent_ > rest_) {
            spent_ = 0;
            speed_[other] = {};  // what it was like before may be over
            busy_ = other == 1 && taken_(workers);
            if (!busy_) way_ = other;
        } else if (work >= 0 && speed_[other].over(speed_[way_])) {
            busy_ = other == 1 && taken_(workers);
            if (!busy_) go(other);
        }
    }

  private:
    static constexpr int kOneIn = 7;
    static constexpr int64_t kSlow = 2'000'000, kTrial = 2'000'000, kRest = 30'000'000, kLongest = 60'000'000'000;  // ns: Linux's turns are longer than kSlow, rounds of one query shorter
    static constexpr double kRemembered = 1e7, kMost = 2e6;  // ns
    static constexpr double kLittle = 0.1;  // of a trial: no reason to wait longer for the next
    static constexpr double kRepaid = 40;  // what a trial loses is a fortieth of the time until the next one, after a few that fail

    struct Speed {
        double work = 0, took = 0;
        double of(const Speed& other) const { return other.work * took > 0 ? work * other.took / (other.work * took) : 1; }
        bool over(const Speed& other) const { return took > 0 && of(other) > 1.02; }
    };

    void go(int way) {
        if (way != better_) patience_ = rest_ = kRest;  // those that the other one's trials had earned
        way_ = better_ = way;
        spent_ = 0;
    }

    Speed speed_[2];
    int way_, better_, last_ = -1;
    bool (*taken_)(int);
    bool slow_ = false, busy_ = false;
    unsigned rounds_ = 0;
    int64_t spent_ = 0, rest_ = kTrial, patience_ = kRest;
};

// Rounds between a host's own operations and rounds of a loop that does nothing else, where all threads are awake, are chosen for
// apart: what is learned in one says nothing of the other. Between operations the team comes first.
class Situations {
  public:
    Ways& at(int64_t now) {
        if (now - ended_ > kGap) alone_since_ = now;
        return ways_[now - alone_since_ > kLoop ? 1 : 0];
    }

    void end(int64_t now) { ended_ = now; }

  private:
    static constexpr int64_t kGap = 100'000, kLoop = 20'000'000;  // ns: less is Python's own; a call may have long rounds itself
    Ways ways_[2] = {Ways(processors_are_taken(0) ? 0 : 1), Ways(0)};
    int64_t ended_ = -kGap, alone_since_ = 0;
};

}  // namespace headlong
