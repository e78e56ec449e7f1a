// How threads that work on one thing divide it: in turns, or a run of chunks for each.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

#include "runtime/interrupts.h"
#include "runtime/pool.h"

namespace headlong {

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

// Runs work(thread, chunk) over all chunks, each thread its own run of them: sums come out the same every time.
template <typename Work>
void over_chunks(int64_t chunks, int threads, const Work& work) {
    run_parallel(threads, [&](int thread) {
        for (int64_t c = chunks * thread / threads; c < chunks * (thread + 1) / threads; ++c) {
            check_in();
            work(thread, c);
        }
    });
}

// Runs resolve(q) for every query: by all threads, or, of so few that each shall have them all, one after the other.
template <typename Resolve>
void each_resolved(int64_t n, int threads, bool alone, const Resolve& resolve) {
    if (alone) {
        for (int64_t q = 0; q < n; ++q) resolve(q);
        return;
    }
    Turns<int64_t> next;
    run_parallel(threads, [&](int) {
        for (int64_t q = next++; q < n; q = next++) resolve(q);
    });
}

// Answers `n` queries, at most `at_once` of them together: scan(first, count) reads what they share, resolve(scanned, query, its place in the scan, threads)
// ends each. Returns those that it leaves open, for which it is false.
template <typename Scan, typename Resolve>
std::vector<int64_t> in_groups(int64_t n, int64_t at_once, int threads, const Scan& scan, const Resolve& resolve) {
    std::vector<int64_t> left;
    for (int64_t first = 0; first < n; first += at_once) {
        const int64_t count = std::min(at_once, n - first);
        auto scanned = scan(first, count);
        std::vector<uint8_t> done(count);
        const int inside = count < 2 * threads ? threads : 1;  // threads of one query
        each_resolved(count, threads, inside > 1, [&](int64_t q) { done[q] = resolve(scanned, first + q, q, inside); });
        for (int64_t q = 0; q < count; ++q)
            if (!done[q]) left.push_back(first + q);
    }
    return left;
}

// What each thread gathered for each query, apart from what others write.
template <typename T>
class Gathered {
  public:
    Gathered(int threads, int64_t n) : n_(n), all_(threads * n) {}
    T& at(int thread, int64_t q) { return all_[thread * n_ + q].value; }
    template <typename Visit>
    void each(int64_t q, const Visit& visit) {
        for (size_t i = q; i < all_.size(); i += n_) visit(all_[i].value);
    }

  private:
    struct alignas(64) Own {
        T value;
    };
    int64_t n_;
    std::vector<Own> all_;
};

// Values of queries that only rise while a scan goes on.
inline void raise_to(std::atomic<float>& threshold, float value) {
    float now = threshold.load(std::memory_order_relaxed);
    while (value > now && !threshold.compare_exchange_weak(now, value, std::memory_order_relaxed)) {}
}
inline std::vector<std::atomic<float>> lowest_of(int64_t n) {
    std::vector<std::atomic<float>> all(n);
    for (std::atomic<float>& one : all) one.store(std::numeric_limits<float>::lowest());
    return all;
}

// What the threads gathered, thread by thread.
template <typename T>
std::vector<T> joined(const std::vector<std::vector<T>>& each) {
    std::vector<T> all;
    for (const std::vector<T>& one : each) all.insert(all.end(), one.begin(), one.end());
    return all;
}

}  // namespace headlong
