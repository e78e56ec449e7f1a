// Fuzzed inputs for every kernel, and a check that runs one on them twice: at a level, and at the level that it is compared with.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/levels.h"
#include "scan/tiles.h"

namespace headlong {

// splitmix64, so that every machine sees the same numbers.
class Noise {
  public:
    explicit Noise(uint64_t seed) : state_(seed) {}
    uint64_t next() {
        uint64_t x = state_ += 0x9E3779B97F4A7C15u;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
        return x ^ (x >> 31);
    }
    int64_t below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }
    float uniform(float low, float high) { return low + (high - low) * static_cast<float>(next() >> 40) * 0x1p-24f; }
    template <typename T>
    std::vector<T> bytes(int64_t n, int low, int high) {
        std::vector<T> out(n);
        for (T& v : out) v = static_cast<T>(low + below(high - low + 1));
        return out;
    }
    std::vector<float> floats(int64_t n, float low, float high) {
        std::vector<float> out(n);
        for (float& v : out) v = uniform(low, high);
        return out;
    }

  private:
    uint64_t state_;
};

// A row kernel's inputs: entries as stored, and the numbers they stand for.
struct Stored {
    std::vector<uint8_t> bytes;
    std::vector<float> values;
};
Stored stored(Noise& noise, Kind kind, int64_t n, bool wild);

class Check {
  public:
    // own_order: the level adds in an order of its own, so only what no order changes is compared.
    Check(const Level& level, const Level& standard, bool own_order = false)
        : level_(level), standard_(standard), own_order_(own_order), noise_(0) {}

    void begin(uint64_t seed) {
        seed_ = seed;
        noise_ = Noise(seed);
    }
    Noise& noise() { return noise_; }
    const Kernels& kernels() const { return *level_.kernels; }
    bool good() const { return fault_.empty(); }
    const std::string& fault() const { return fault_; }
    long comparisons() const { return comparisons_; }
    uint64_t hash() const { return hash_; }

    // run(kernels, out), or run(level, out), writes its results behind one another into `out`.
    template <typename Run>
    void same(const char* kernel, const Run& run) {
        if (!own_order_) exact(kernel, run);
    }
    // The same of results that no order of sums changes: whole numbers, and choices.
    template <typename Run>
    void exact(const char* kernel, const Run& run) {
        std::vector<uint8_t> here, there;
        if constexpr (std::is_invocable_v<Run, const Kernels&, std::vector<uint8_t>&>) run(*level_.kernels, here), run(*standard_.kernels, there);
        else run(level_, here), run(standard_, there);
        note(kernel, here == there, here);
    }
    // Each of n results within its bound of an exact one.
    void within(const char* kernel, const std::vector<double>& got, const std::vector<double>& exact, const std::vector<double>& bound);
    void note(const char* kernel, bool right, const std::vector<uint8_t>& wrote);

  private:
    const Level &level_, &standard_;
    bool own_order_;
    Noise noise_;
    uint64_t seed_ = 0, hash_ = 0xCBF29CE484222325u;
    long comparisons_ = 0;
    std::string fault_;
};

template <typename T>
void put(std::vector<uint8_t>& out, const T* values, int64_t n) {
    const auto* from = reinterpret_cast<const uint8_t*>(values);
    out.insert(out.end(), from, from + n * static_cast<int64_t>(sizeof(T)));
}
template <typename T>
void put(std::vector<uint8_t>& out, const std::vector<T>& values) { put(out, values.data(), static_cast<int64_t>(values.size())); }
template <typename T>
void put(std::vector<uint8_t>& out, T value) { put(out, &value, 1); }

void rows(Check& check);     // rows as they are stored
void classes(Check& check);  // what follows a scan
void estimates(Check& check);  // the scan of codes, which is one of the level's other tables
void tables(Check& check);   // the level's other tables: the looks of blocks, the scan of codes

void edges(Check& check, const ScanKernels& scan);  // bounds where numbers flush and saturate

#ifdef HEADLONG_EVEX
const ScanKernels* avxvnni_evex_scan();
#endif

}  // namespace headlong
