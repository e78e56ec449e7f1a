// What this CPU offers, asked of the processor (x86-64) or of the operating system (AArch64, where a program may not ask the
// processor). Systems report what all cores have, so it does not matter on which of them a thread runs.
#include "kernels/cpu.h"

#ifdef HEADLONG_X86
#include <cpuid.h>
#elif defined(HEADLONG_ARM64) && defined(__APPLE__)
#include <sys/sysctl.h>

#include <cstddef>
#elif defined(HEADLONG_ARM64) && defined(_WIN32)
#include <windows.h>
#elif defined(HEADLONG_ARM64) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace headlong {

#ifdef HEADLONG_X86
namespace {

// Registers that the operating system saves: bits 1, 2 of XCR0 for AVX; 5, 6, 7 besides for AVX-512.
uint64_t saved_registers() {
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return static_cast<uint64_t>(high) << 32 | low;
}

}  // namespace

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
    take(more_a, 4, kAvxvnni);
    take(extended_c, 9, kVaes), take(extended_c, 10, kVpclmulqdq);
    if ((saved & 0xE6) != 0xE6 || (extended_b >> 16 & 1) == 0) return all;
    take(extended_b, 16, kAvx512f), take(extended_b, 17, kAvx512dq), take(extended_b, 21, kAvx512ifma);
    take(extended_b, 28, kAvx512cd), take(extended_b, 30, kAvx512bw), take(extended_b, 31, kAvx512vl);
    take(extended_c, 1, kAvx512vbmi), take(extended_c, 6, kAvx512vbmi2), take(extended_c, 11, kAvx512vnni);
    take(extended_c, 12, kAvx512bitalg), take(extended_c, 14, kAvx512vpopcntdq), take(more_a, 5, kAvx512bf16);
    return all;
}
#elif defined(HEADLONG_ARM64) && defined(__APPLE__)
uint64_t features_here() {
    const auto has = [](const char* name) {
        int value = 0;
        size_t size = sizeof value;
        return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
    };
    return has("hw.optional.arm.FEAT_DotProd") ? kDotprod : uint64_t{0};
}
#elif defined(HEADLONG_ARM64) && defined(_WIN32)
uint64_t features_here() {
    constexpr DWORD dotprod = 43;  // PF_ARM_V82_DP_...; older headers lack the latter
    return IsProcessorFeaturePresent(dotprod) ? kDotprod : uint64_t{0};
}
#elif defined(HEADLONG_ARM64) && defined(__linux__)
uint64_t features_here() {
    constexpr unsigned long dotprod = 1ul << 20;  // HWCAP_ASIMDDP
    return (getauxval(AT_HWCAP) & dotprod) != 0 ? kDotprod : uint64_t{0};
}
#else
uint64_t features_here() { return 0; }
#endif

}  // namespace headlong
