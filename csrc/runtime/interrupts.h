// A call under way: whether it is to stop before it is done. Its threads ask at every turn, so that an interrupt ends a long
// batch soon, and a failure of one thread does not wait for the others' work.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace headlong {

// What a call throws that was asked to stop.
struct Interrupted {};

class Call {
  public:
    // `asked` is called by the thread that made the call, at most ten times a second; true: stop.
    explicit Call(bool (*asked)(void*) = nullptr, void* with = nullptr) : asked_(asked), with_(with) {}

    bool stopped() const { return stop_.load(std::memory_order_relaxed); }
    void stop() { stop_.store(true, std::memory_order_relaxed); }

    // For the thread that made the call: asks now and then whether to stop.
    bool ask() {
        if (stopped()) return true;
        if (asked_ == nullptr) return false;
        const auto now = std::chrono::steady_clock::now();
        if (now < next_) return false;
        if (asked_(with_)) stop();
        next_ = std::chrono::steady_clock::now() + kBetween;
        return stopped();
    }

  private:
    static constexpr std::chrono::milliseconds kBetween{100};

    bool (*asked_)(void*);
    void* with_;
    std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now() + kBetween;
    std::atomic<bool> stop_{false};
};

// The call that this thread works for, if any; it made the call, or lends a hand.
struct Role {
    Call* call = nullptr;
    bool made = false;
};
Role& role();

// Throws Interrupted when the call that this thread works for is to stop. Cheap enough for every turn of a microsecond.
inline void check_in() {
    const Role& own = role();
    if (own.call == nullptr) return;
    if (own.made ? own.call->ask() : own.call->stopped()) throw Interrupted{};
}

// Hands out 0, 1, 2, ... to threads that share a piece of work, and checks in for each.
template <typename T>
class Turns {
  public:
    explicit Turns(T first = 0) : next_(first) {}
    T operator++(int) { return fetch_add(1); }
    T fetch_add(T count) {
        check_in();
        return next_.fetch_add(count, std::memory_order_relaxed);
    }
    // Neighbours that one thread takes at a time, fewer towards the end: what is read in one go is foreseen by the hardware.
    struct Run {
        T first, stop;
    };
    Run run(T stop, int threads) {
        const T left = stop - std::min(stop, load()), many = std::max<T>(1, left / static_cast<T>(4 * threads)), first = fetch_add(many);
        return {first, std::min(stop, first + many)};
    }
    T load() const { return next_.load(std::memory_order_relaxed); }
    void store(T value) { next_.store(value, std::memory_order_relaxed); }

  private:
    std::atomic<T> next_;
};

}  // namespace headlong
