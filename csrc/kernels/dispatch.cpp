// Picks a kernel table by what the CPU can do; nothing else looks at the CPU.
#include <cstring>

#include "kernels/cpu.h"
#include "kernels/kernels.h"

#ifdef HEADLONG_X86
#include <cpuid.h>
#endif

namespace headlong {
namespace {

#ifdef HEADLONG_X86
// Registers that the operating system saves: bits 1, 2 of XCR0 for AVX; 5, 6, 7 besides for AVX-512.
uint64_t saved_registers() {
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return static_cast<uint64_t>(high) << 32 | low;
}

// Every extension that both the CPU and the operating system offer.
uint64_t features_here() {
    uint32_t a, b, c = 0, d, extended_b = 0, extended_c = 0, more_a = 0, old_c = 0;
    uint64_t all = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0) return 0;
    uint32_t basic = c, ignored;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0) {
        extended_b = b;
        extended_c = c;
        if (a >= 1) __get_cpuid_count(7, 1, &more_a, &ignored, &c, &d);
    }
    if (__get_cpuid(0x80000001, &a, &b, &c, &d) != 0) old_c = c;
    const auto take = [&](uint32_t word, int bit, uint64_t feature) { all |= (word >> bit & 1) != 0 ? feature : 0; };
    take(basic, 20, kSse42), take(basic, 22, kMovbe), take(basic, 23, kPopcnt);
    take(old_c, 5, kLzcnt);
    take(extended_b, 3, kBmi), take(extended_b, 8, kBmi2);
    take(extended_c, 8, kGfni);
    const uint64_t saved = (basic >> 27 & 1) != 0 ? saved_registers() : 0;
    if ((saved & 0x6) != 0x6 || (basic >> 28 & 1) == 0) return all;
    take(basic, 28, kAvx), take(basic, 29, kF16c), take(basic, 12, kFma), take(extended_b, 5, kAvx2);
    take(extended_c, 9, kVaes), take(extended_c, 10, kVpclmulqdq);
    if ((saved & 0xE6) != 0xE6 || (extended_b >> 16 & 1) == 0) return all;
    take(extended_b, 16, kAvx512f), take(extended_b, 17, kAvx512dq), take(extended_b, 21, kAvx512ifma);
    take(extended_b, 28, kAvx512cd), take(extended_b, 30, kAvx512bw), take(extended_b, 31, kAvx512vl);
    take(extended_c, 1, kAvx512vbmi), take(extended_c, 6, kAvx512vbmi2), take(extended_c, 11, kAvx512vnni);
    take(extended_c, 12, kAvx512bitalg), take(extended_c, 14, kAvx512vpopcntdq), take(more_a, 5, kAvx512bf16);
    return all;
}
#endif

struct Entry {
    const char* name;
    bool usable;
    const Kernels* (*table)();
};

const Entry* entries(int* count) {
#ifdef HEADLONG_X86
    static const uint64_t here = features_here();
#endif
    static const Entry all[] = {
        {"portable", true, portable_kernels},
#ifdef HEADLONG_X86
        {"avx2", (avx2_features & ~here) == 0, avx2_kernels},
        {"avx512vnni", (avx512_features & ~here) == 0, avx512_kernels},
#endif
    };
    *count = static_cast<int>(sizeof all / sizeof all[0]);
    return all;
}

}  // namespace

const char* const* levels() {
    struct Names {
        const char* list[8] = {};
        Names() {
            int count, used = 0;
            const Entry* all = entries(&count);
            for (int i = 0; i < count; ++i)
                if (all[i].usable) list[used++] = all[i].name;
        }
    };
    static const Names names;
    return names.list;
}

const Kernels* kernels_for(const char* isa) {
    int count;
    const Entry* all = entries(&count);
    for (int i = count - 1; i >= 0; --i)
        if (all[i].usable && (*isa == '\0' || std::strcmp(isa, all[i].name) == 0)) return all[i].table();
    return nullptr;
}

}  // namespace headlong
