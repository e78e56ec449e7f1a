// What this CPU offers, asked of the processor (x86-64) or of the operating system (AArch64, where a program may not ask the
// processor). Systems report what all cores have, so it does not matter on which of them a thread runs.
#include "kernels/cpu.h"

#ifdef HEADLONG_X86
#include <cpuid.h>

#include <cstdint>
#include <initializer_list>
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

bool has(uint32_t word, std::initializer_list<int> bits) {
    for (int bit : bits)
        if ((word >> bit & 1) == 0) return false;
    return true;
}

}  // namespace

Processor this_processor() {
    uint32_t a, b, basic, d, own_b, own_c, more_a = 0, other_c;
    Processor here;
    if (__get_cpuid(1, &a, &b, &basic, &d) == 0 || __get_cpuid_count(7, 0, &a, &own_b, &own_c, &d) == 0) return here;
    if (a >= 1) __get_cpuid_count(7, 1, &more_a, &b, &other_c, &d);
    constexpr int fma = 12, sse42 = 20, popcnt = 23, saves = 27, avx = 28, f16c = 29;
    const uint64_t saved = has(basic, {saves}) ? saved_registers() : 0;
    here.avx2 = (saved & 0x6) == 0x6 && has(basic, {fma, sse42, popcnt, avx, f16c}) && has(own_b, {5});
    here.avxvnni = here.avx2 && has(more_a, {4});
    constexpr int f = 16, dq = 17, bw = 30, vl = 31, vnni = 11;
    here.avx512vnni = here.avx2 && (saved & 0xE6) == 0xE6 && has(own_b, {f, dq, bw, vl}) && has(own_c, {vnni});
    return here;
}
#elif defined(HEADLONG_ARM64) && defined(__APPLE__)
Processor this_processor() {
    int value = 0;
    size_t size = sizeof value;
    Processor here;
    here.dotprod = sysctlbyname("hw.optional.arm.FEAT_DotProd", &value, &size, nullptr, 0) == 0 && value != 0;
    return here;
}
#elif defined(HEADLONG_ARM64) && defined(_WIN32)
Processor this_processor() {
    constexpr DWORD dotprod = 43;  // PF_ARM_V82_DP_...; older headers lack the latter
    Processor here;
    here.dotprod = IsProcessorFeaturePresent(dotprod) != 0;
    return here;
}
#elif defined(HEADLONG_ARM64) && defined(__linux__)
Processor this_processor() {
    constexpr unsigned long dotprod = 1ul << 20;  // HWCAP_ASIMDDP
    Processor here;
    here.dotprod = (getauxval(AT_HWCAP) & dotprod) != 0;
    return here;
}
#else
Processor this_processor() { return {}; }
#endif

}  // namespace headlong
