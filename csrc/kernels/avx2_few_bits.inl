// AVX2's products of codes of fewer than 8 bits with both planes of a query, or with the first alone. They fit the 8-bit instruction, and sums of some of its
// pairs fit 16 bits: only one sum in so many is widened. Included inside the anonymous namespace of kernels/avx2.cpp.

// Sums of half a block, 32 classes of one query; `low` stays 0 where its plane is not read. A function of its own: beside anything else, the compiler runs out of registers.
template <int Bits, bool Ahead, bool Both>
__attribute__((noinline)) void sum_few(const uint8_t* half, int64_t words, const int8_t* planes, __m256i (&high)[4], __m256i (&low)[4]) {
    constexpr int kGroups = 8 / Bits, kMostCode = (1 << Bits) - 1;
    constexpr int64_t kRun = 32767 / (2 * 128 * kMostCode) / kGroups;  // words whose pairs fit 16 bits together
    const __m256i mask = _mm256_set1_epi8(static_cast<char>(kMostCode));
    for (int v = 0; v < 4; ++v) high[v] = low[v] = _mm256_setzero_si256();
    for (int64_t j = 0; j < words;) {
        __m256i a[4] = {}, b[4] = {};
        for (const int64_t stop = j + kRun < words ? j + kRun : words; j < stop; ++j) {
            if (Ahead) ask_ahead(half + kReadAhead + j * 256);
#pragma GCC unroll 8
            for (int g = 0; g < kGroups; ++g) {
                const float* x = reinterpret_cast<const float*>(planes + (j * kGroups + g) * 8);
                const __m256i x0 = _mm256_castps_si256(_mm256_broadcast_ss(x)), x1 = _mm256_castps_si256(_mm256_broadcast_ss(x + 1));
#pragma GCC unroll 4
                for (int v = 0; v < 4; ++v) {
                    __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(half + j * 256 + v * 32));
                    if (g > 0) code = _mm256_srli_epi16(code, g * Bits);
                    code = _mm256_and_si256(code, mask);
                    a[v] = _mm256_add_epi16(a[v], _mm256_maddubs_epi16(code, x0));
                    if (Both) b[v] = _mm256_add_epi16(b[v], _mm256_maddubs_epi16(code, x1));
                    __asm__("" : "+x"(a[v]), "+x"(b[v]));  // in this order: any other takes more registers than there are
                }
            }
        }
        const __m256i ones = _mm256_set1_epi16(1);
        for (int v = 0; v < 4; ++v) {
            high[v] = _mm256_add_epi32(high[v], _mm256_madd_epi16(a[v], ones));
            if (Both) low[v] = _mm256_add_epi32(low[v], _mm256_madd_epi16(b[v], ones));
        }
    }
}

template <int Bits, bool Both>
void scan_half(const uint8_t* half, const uint8_t* ahead, int64_t words, const int8_t* planes, const int32_t* offset, float step,
               const float* scale, const float* base, float add, float* est) {
    __m256i high[4], low[4];
    if (ahead != nullptr) sum_few<Bits, true, Both>(half, words, planes, high, low);
    else sum_few<Bits, false, Both>(half, words, planes, high, low);
    __m256 dots[4];
    join_planes<Bits>(high, low, offset, dots);
    put_estimates(dots, step, scale, base, add, est);
}
