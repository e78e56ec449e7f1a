// What AVX2's two levels share of products with codes (avx2's own are in avx2_eight_bits.inl and avx2_few_bits.inl); each sums up
// half a block, 32 classes of one query, in its own way. Included inside an anonymous namespace.

using ScanHalf = void (*)(const uint8_t* half, const uint8_t* ahead, int64_t words, const int8_t* planes, const int32_t* offset, float step,
                          const float* scale, const float* base, float add, float* est);

// From products to estimates: those of a first segment begin with `base` and `add`, others add up.
inline void put_eight(__m256 dots, float step, const float* scale, const float* base, float add, float* est) {
    const __m256 unit = _mm256_mul_ps(_mm256_loadu_ps(scale), _mm256_set1_ps(step));
    const __m256 start = base == nullptr ? _mm256_loadu_ps(est) : _mm256_add_ps(_mm256_loadu_ps(base), _mm256_set1_ps(add));
    _mm256_storeu_ps(est, _mm256_fmadd_ps(dots, unit, start));
}

inline void put_estimates(const __m256 (&dots)[4], float step, const float* scale, const float* base, float add, float* est) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) put_eight(dots[v], step, scale + 8 * v, base == nullptr ? nullptr : base + 8 * v, add, est + 8 * v);
}

// The products with x, from the sums of both of its planes.
template <int Bits>
inline void join_planes(const __m256i (&high)[4], const __m256i (&low)[4], const int32_t* offset, __m256 (&dots)[4]) {
    const __m256i o0 = _mm256_set1_epi32(offset[0]), o1 = _mm256_set1_epi32(offset[1]);
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
        const __m256i first = Bits < 8 ? _mm256_slli_epi32(high[v], 1) : high[v], second = Bits < 8 ? _mm256_slli_epi32(low[v], 1) : low[v];
        const __m256 a = _mm256_cvtepi32_ps(_mm256_sub_epi32(first, o0)), b = _mm256_cvtepi32_ps(_mm256_sub_epi32(second, o1));
        dots[v] = _mm256_fmadd_ps(a, _mm256_set1_ps(256.f), b);
    }
}

// Both halves of a block for each of n queries; the first asks for the lines of both, some way ahead.
inline void scan_halves(ScanHalf scan, const uint8_t* block, int64_t words, int bits, const int8_t* planes, const int32_t* offset,
                        const float* step, const float* scale, const float* base, const float* add, int n, float* est, int64_t stride) {
    for (int q = 0; q < n; ++q)
        for (int half = 0; half < 2; ++half) {
            const uint8_t* ahead = q + half == 0 ? block + kReadAhead : nullptr;
            scan(block + half * 128, ahead, words, planes + q * words * (8 / bits) * 8, offset + 2 * q, step[q], scale + half * 32,
                 base == nullptr ? nullptr : base + half * 32, add[q], est + q * stride + half * 32);
        }
}

// 32 products of codes of so many bits and numbers within +-127 join eight sums.
template <int Bits>
void add_products(__m256i& sum, __m256i codes, __m256i x);

// Codes of single rows against the query's two planes, 32 bytes at once.
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
