// Memory in large pages, where the system has them, for what every query reads: of small ones each four kilobytes are looked up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace headlong {

// Whole pages of its own from kLeast bytes on: memory that others left behind keeps their small ones.
template <typename T>
struct InLargePages {
    using value_type = T;
    static constexpr size_t kPage = size_t{2} << 20, kLeast = size_t{1} << 17;

    InLargePages() = default;
    template <typename U>
    InLargePages(const InLargePages<U>&) {}

#if defined(__linux__)
    static bool large(size_t count) { return count >= kLeast / sizeof(T); }
    static size_t whole(size_t count) { return (count * sizeof(T) + kPage - 1) / kPage * kPage; }

    T* allocate(size_t count) {
        if (!large(count)) return std::allocator<T>().allocate(count);
        const size_t bytes = whole(count);
        void* const found = mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (found == MAP_FAILED) throw std::bad_alloc();
        auto* const from = static_cast<uint8_t*>(found);
        const size_t before = (kPage - reinterpret_cast<uintptr_t>(from) % kPage) % kPage;
        if (before > 0) munmap(from, before);
        munmap(from + before + bytes, kPage - before);
        madvise(from + before, bytes, MADV_HUGEPAGE);  // a wish
        return reinterpret_cast<T*>(from + before);
    }
    void deallocate(T* p, size_t count) {
        if (large(count)) munmap(p, whole(count));
        else std::allocator<T>().deallocate(p, count);
    }
#else
    T* allocate(size_t count) { return std::allocator<T>().allocate(count); }
    void deallocate(T* p, size_t count) { std::allocator<T>().deallocate(p, count); }
#endif

    friend bool operator==(const InLargePages&, const InLargePages&) { return true; }
    friend bool operator!=(const InLargePages&, const InLargePages&) { return false; }
};

using LargeBytes = std::vector<uint8_t, InLargePages<uint8_t>>;

}  // namespace headlong
