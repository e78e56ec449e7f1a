// Codes of single rows against the query's two planes, 32 bytes at once. Included inside the anonymous namespace of a translation unit
// that defines add_products<Bits>(sum, codes, x): 32 products of codes of so many bits and numbers within +-127 join eight sums.

template <int Bits>
void dot_bits(const uint8_t* codes, int64_t stride, const int32_t* ids, int64_t n, int64_t count, const int8_t* high,
              const int8_t* low, int32_t* dots) {
    constexpr int kTimes = Bits == 8 ? 1 : 2;
    const __m256i few = _mm256_set1_epi8(static_cast<char>((1 << Bits) - 1));
    const auto taken = [](const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); };
    for (int64_t j = 0; j < n; ++j) {
        if (j + 4 < n)
            for (int64_t i = 0; i < count; i += 64)
                _mm_prefetch(reinterpret_cast<const char*>(codes + ids[j + 4] * stride + i), _MM_HINT_T0);
        const uint8_t* row = codes + ids[j] * stride;
        __m256i a = _mm256_setzero_si256(), b = a;
        int64_t i = 0;
        for (; i + 32 <= count; i += 32) {
            const __m256i code = taken(row + i);
#pragma GCC unroll 8
            for (int g = 0; g < 8 / Bits; ++g) {
                const __m256i u = Bits == 8 ? code : _mm256_and_si256(_mm256_srli_epi32(code, g * Bits), few);
                add_products<Bits>(a, u, taken(high + g * count + i));
                add_products<Bits>(b, u, taken(low + g * count + i));
            }
        }
        int32_t sums[2][8], x = 0, y = 0;
        std::memcpy(sums[0], &a, sizeof a);
        std::memcpy(sums[1], &b, sizeof b);
        for (int l = 0; l < 8; ++l) x += sums[0][l], y += sums[1][l];
        for (; i < count; ++i)
            for (int g = 0; g < 8 / Bits; ++g) {
                const int32_t code = row[i] >> g * Bits & ((1 << Bits) - 1);
                x += code * high[g * count + i];
                y += code * low[g * count + i];
            }
        dots[2 * j] = kTimes * x;
        dots[2 * j + 1] = kTimes * y;
    }
}

void dot_codes(const uint8_t* codes, int64_t stride, const int32_t* ids, int64_t n, int64_t count, int bits, const int8_t* high,
               const int8_t* low, int32_t* dots) {
    const auto dot = bits == 8 ? dot_bits<8> : bits == 4 ? dot_bits<4> : bits == 2 ? dot_bits<2> : dot_bits<1>;
    dot(codes, stride, ids, n, count, high, low, dots);
}
