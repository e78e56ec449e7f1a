// AVX2's products of 8-bit codes with a query whose two planes are one number of 16 bits, 256 of the first and one of the second: half
// the products, since the 8-bit instruction saturates. The sum is that of the planes, and so is what float32 makes of it. Included
// inside the anonymous namespace of kernels/avx2.cpp.

// From products to estimates: those of a first segment begin with `base` and `add`, others add up.
inline void put_eight(__m256 dots, float step, const float* scale, const float* base, float add, float* est) {
    const __m256 unit = _mm256_mul_ps(_mm256_loadu_ps(scale), _mm256_set1_ps(step));
    const __m256 start = base == nullptr ? _mm256_loadu_ps(est) : _mm256_add_ps(_mm256_loadu_ps(base), _mm256_set1_ps(add));
    _mm256_storeu_ps(est, _mm256_fmadd_ps(dots, unit, start));
}

constexpr int64_t kWordsJoined = 128;  // 512 products of 128 and 128 * 255 at the most, less their offset, fit 32 bits

// The joined numbers of some words, [word][coordinates 0 and 2, 1 and 3], and 128 times their sum.
inline int32_t join_words(const int8_t* planes, int64_t words, int32_t* joined) {
    const __m128i even = _mm_set1_epi16(0x00FF), ones = _mm_set1_epi16(1);
    __m128i all = _mm_setzero_si128();
    for (int64_t j = 0; j < words; j += 2) {
        __m128i high = _mm_setzero_si128();  // high, low, high, low: four bytes each
        if (j + 2 <= words) high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(planes + j * 8));
        else high = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(planes + j * 8));
        const __m128i low = _mm_srli_epi64(high, 32);
        const __m128i first = _mm_add_epi16(_mm_slli_epi16(high, 8), _mm_srai_epi16(_mm_slli_epi16(low, 8), 8));
        const __m128i second = _mm_add_epi16(_mm_andnot_si128(even, high), _mm_srai_epi16(low, 8));
        const __m128i both = _mm_blend_epi16(first, _mm_slli_epi64(second, 32), 0xCC);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(joined + 2 * j), both);
        all = _mm_add_epi32(all, _mm_madd_epi16(both, ones));
    }
    all = _mm_add_epi32(all, _mm_shuffle_epi32(all, 0x4E));
    all = _mm_add_epi32(all, _mm_shuffle_epi32(all, 0xB1));
    return 128 * _mm_cvtsi128_si32(all);
}

// [query][vector] sums of V x 8 classes for N queries: they stay in registers. A query's joined words are kWordsJoined behind those of the
// one before. A function of its own: beside anything else, the compiler runs out of registers for them.
template <int N, int V, bool Ahead>
__attribute__((noinline)) void sum_words(const uint8_t* block, int64_t words, const int32_t* joined, const int32_t* offset, __m256i* out) {
    const __m256i even = _mm256_set1_epi16(0x00FF);
    __m256i sum[N][V];
#pragma GCC unroll 8
    for (int q = 0; q < N; ++q)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sum[q][v] = _mm256_set1_epi32(-offset[q]);
    for (const uint8_t* end = block + words * 256; block != end; block += 256, joined += 2) {
        if (Ahead) ask_ahead(block + kReadAhead);
        __m256i first[N], second[N];
#pragma GCC unroll 8
        for (int q = 0; q < N; ++q) {
            first[q] = _mm256_set1_epi32(joined[q * 2 * kWordsJoined]);
            second[q] = _mm256_set1_epi32(joined[q * 2 * kWordsJoined + 1]);
        }
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
            __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + v * 32));
            __asm__("" : "+x"(code));  // read once
            const __m256i e = _mm256_and_si256(code, even), o = _mm256_srli_epi16(code, 8);
#pragma GCC unroll 8
            for (int q = 0; q < N; ++q) {
                sum[q][v] = _mm256_add_epi32(sum[q][v], _mm256_madd_epi16(e, first[q]));
                __asm__("" : "+x"(sum[q][v]));  // in this order: any other takes more registers than there are
                sum[q][v] = _mm256_add_epi32(sum[q][v], _mm256_madd_epi16(o, second[q]));
            }
        }
    }
#pragma GCC unroll 8
    for (int q = 0; q < N; ++q)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) out[q * V + v] = sum[q][v];
}

// What the sums of N queries and V x 8 classes say of their estimates.
template <int N, int V>
inline void put_sums(const __m256i* sums, const float* step, const float* scale, const float* base, const float* add, float* est, int64_t stride) {
    for (int q = 0; q < N; ++q)
        for (int v = 0; v < V; ++v)
            put_eight(_mm256_cvtepi32_ps(sums[q * V + v]), step[q], scale + v * 8, base == nullptr ? nullptr : base + v * 8, add[q], est + q * stride + v * 8);
}

// A block of 64 classes for N queries, V x 8 classes after the others.
template <int N, int V>
void scan_joined(const uint8_t* block, bool ahead, int64_t words, const int8_t* planes, const float* step, const float* scale,
                 const float* base, const float* add, float* est, int64_t stride) {
    int32_t joined[N * 2 * kWordsJoined + 2], offset[N];
    for (int q = 0; q < N; ++q) offset[q] = join_words(planes + q * words * 8, words, joined + q * 2 * kWordsJoined);
    for (int part = 0; part < 8 / V; ++part) {
        __m256i sums[N * V];
        const int at = part * V * 8;
        if (ahead && part == 0) sum_words<N, V, true>(block + at * 4, words, joined, offset, sums);
        else sum_words<N, V, false>(block + at * 4, words, joined, offset, sums);
        put_sums<N, V>(sums, step, scale + at, base == nullptr ? nullptr : base + at, add, est + at, stride);
    }
}

// The same of more words than fit 32 bits, which are summed up run by run, in units of 256 and of 1.
template <int N, int V>
void scan_long(const uint8_t* block, bool ahead, int64_t words, const int8_t* planes, const float* step, const float* scale,
               const float* base, const float* add, float* est, int64_t stride) {
    constexpr int kSums = N * V;
    int32_t joined[N * 2 * kWordsJoined + 2], offset[N];
    __m256i units[8 / V * kSums] = {}, ones[8 / V * kSums] = {};
    for (int64_t start = 0; start < words; start += kWordsJoined) {
        const int64_t count = words - start < kWordsJoined ? words - start : kWordsJoined;
        for (int q = 0; q < N; ++q) offset[q] = join_words(planes + (q * words + start) * 8, count, joined + q * 2 * kWordsJoined);
        for (int part = 0; part < 8 / V; ++part) {
            __m256i sums[kSums];
            const uint8_t* from = block + start * 256 + part * V * 32;
            if (ahead && part == 0) sum_words<N, V, true>(from, count, joined, offset, sums);
            else sum_words<N, V, false>(from, count, joined, offset, sums);
            for (int i = 0; i < kSums; ++i) {
                __m256i &unit = units[part * kSums + i], &one = ones[part * kSums + i];
                unit = _mm256_add_epi32(unit, _mm256_srai_epi32(sums[i], 8));
                one = _mm256_add_epi32(one, _mm256_and_si256(sums[i], _mm256_set1_epi32(255)));
            }
        }
    }
    for (int i = 0; i < 8 / V * kSums; ++i) {
        const int q = i / V % N, at = (i / kSums * V + i % V) * 8;
        const __m256 dot = _mm256_fmadd_ps(_mm256_cvtepi32_ps(units[i]), _mm256_set1_ps(256.f), _mm256_cvtepi32_ps(ones[i]));
        put_eight(dot, step[q], scale + at, base == nullptr ? nullptr : base + at, add[q], est + q * stride + at);
    }
}

void scan_u8(const uint8_t* block, int64_t words, const int32_t*, const int8_t* planes, const int32_t*, const float* step, const float* scale,
             const float* base, const float* add, int n, float* est, int64_t stride) {
    const bool once = words <= kWordsJoined;
    int q = 0;
    const auto some = [&](const auto& scan, int width) {
        scan(block, q == 0, words, planes + q * words * 8, step + q, scale, base, add + q, est + q * stride, stride);
        q += width;
    };
    while (q + 2 <= n) {
        if (once) some(scan_joined<2, 4>, 2);
        else some(scan_long<2, 4>, 2);
    }
    if (q == n) return;
    if (once) some(scan_joined<1, 8>, 1);
    else some(scan_long<1, 8>, 1);
}
