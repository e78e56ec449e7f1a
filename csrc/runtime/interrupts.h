// A call under way: whether it is to stop before it is done. Its threads ask at every turn, so that an interrupt ends a long
// batch soon, and a failure of one thread does not wait for the others' work.
#pragma once

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

}  // namespace headlong
