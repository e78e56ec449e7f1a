// An allocator that fails once, on the n-th call after it was armed. Loaded before the C++ library, so that every
// allocation of C++ code in the process comes here: `operator new`, aligned or not.
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {
std::atomic<long> left{0}, calls{0};

void* get(std::size_t size, std::size_t border) {
    ++calls;
    if (left.load() > 0 && --left == 0) throw std::bad_alloc();
    void* p = nullptr;
    if (border <= alignof(std::max_align_t)) p = std::malloc(size ? size : 1);
    else if (posix_memalign(&p, border, size) != 0) p = nullptr;
    if (p == nullptr) throw std::bad_alloc();
    return p;
}
}  // namespace

extern "C" void fail_on(long n) { left = n, calls = 0; }
extern "C" long calls_since() { return calls; }

void* operator new(std::size_t size) { return get(size, 1); }
void* operator new[](std::size_t size) { return get(size, 1); }
void* operator new(std::size_t size, std::align_val_t border) { return get(size, static_cast<std::size_t>(border)); }
void* operator new[](std::size_t size, std::align_val_t border) { return get(size, static_cast<std::size_t>(border)); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
