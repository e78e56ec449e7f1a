// The avxvnni scan in AVX-512's encoding of the same instruction, so that a server without AVX-VNNI can check its arithmetic.
#define avxvnni_scan avxvnni_evex_scan
#ifdef __clang__  // has no assembly there, and an intrinsic for each encoding
#include <immintrin.h>
#define _mm256_dpbusd_avx_epi32 _mm256_dpbusd_epi32
#endif
#include "scan/avxvnni.cpp"
