// What a CPU has to offer: one bit per instruction set extension that a translation unit may be compiled with.
//
// compiled_features() reads the compiler's own macros, so a file's list cannot fall behind its flags. It is data, not code:
// asking needs no instruction of the file that is asked about.
#pragma once

#include <cstdint>

namespace headlong {

enum Feature : uint64_t {
    kPopcnt = 1 << 0, kSse42 = 1 << 1, kMovbe = 1 << 2, kAvx = 1 << 3, kF16c = 1 << 4, kFma = 1 << 5, kLzcnt = 1 << 6,
    kAvx2 = 1 << 7, kBmi = 1 << 8, kBmi2 = 1 << 9, kAvx512f = 1 << 10, kAvx512dq = 1 << 11, kAvx512cd = 1 << 12,
    kAvx512bw = 1 << 13, kAvx512vl = 1 << 14, kAvx512vnni = 1 << 15, kAvx512vbmi = 1 << 16, kAvx512vbmi2 = 1 << 17,
    kAvx512ifma = 1 << 18, kAvx512bitalg = 1 << 19, kAvx512vpopcntdq = 1 << 20, kAvx512bf16 = 1 << 21, kGfni = 1 << 22,
    kVaes = 1 << 23, kVpclmulqdq = 1 << 24, kAvxvnni = 1 << 25,
    kDotprod = 1 << 26,  // AArch64
};

// Internal linkage: every file has its own answer.
static constexpr uint64_t compiled_features() {
    uint64_t all = 0;
#ifdef __POPCNT__
    all |= kPopcnt;
#endif
#ifdef __SSE4_2__
    all |= kSse42;
#endif
#ifdef __MOVBE__
    all |= kMovbe;
#endif
#ifdef __AVX__
    all |= kAvx;
#endif
#ifdef __F16C__
    all |= kF16c;
#endif
#ifdef __FMA__
    all |= kFma;
#endif
#ifdef __LZCNT__
    all |= kLzcnt;
#endif
#ifdef __AVX2__
    all |= kAvx2;
#endif
#ifdef __BMI__
    all |= kBmi;
#endif
#ifdef __BMI2__
    all |= kBmi2;
#endif
#ifdef __AVX512F__
    all |= kAvx512f;
#endif
#ifdef __AVX512DQ__
    all |= kAvx512dq;
#endif
#ifdef __AVX512CD__
    all |= kAvx512cd;
#endif
#ifdef __AVX512BW__
    all |= kAvx512bw;
#endif
#ifdef __AVX512VL__
    all |= kAvx512vl;
#endif
#ifdef __AVX512VNNI__
    all |= kAvx512vnni;
#endif
#ifdef __AVX512VBMI__
    all |= kAvx512vbmi;
#endif
#ifdef __AVX512VBMI2__
    all |= kAvx512vbmi2;
#endif
#ifdef __AVX512IFMA__
    all |= kAvx512ifma;
#endif
#ifdef __AVX512BITALG__
    all |= kAvx512bitalg;
#endif
#ifdef __AVX512VPOPCNTDQ__
    all |= kAvx512vpopcntdq;
#endif
#ifdef __AVX512BF16__
    all |= kAvx512bf16;
#endif
#ifdef __GFNI__
    all |= kGfni;
#endif
#ifdef __VAES__
    all |= kVaes;
#endif
#ifdef __VPCLMULQDQ__
    all |= kVpclmulqdq;
#endif
#ifdef __AVXVNNI__
    all |= kAvxvnni;
#endif
#ifdef __ARM_FEATURE_DOTPROD
    all |= kDotprod;
#endif
    return all;
}

// Every extension of these that both the CPU and the operating system offer: kernels/cpu.cpp.
uint64_t features_here();

}  // namespace headlong
