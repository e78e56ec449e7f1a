// Int8 codes of all classes against a query's planes, in AVX-512 with VNNI. Included inside the anonymous namespace of
// kernels/avx512.cpp.

// 64 classes lie side by side, four coordinates of each in one 32-bit lane.

// _mm512_dpbusd_epi32 as an instruction: GCC 12 copies and spills the sums around the intrinsic.
inline void add_dots(__m512i& sum, __m512i codes, __m512i x) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(x));
}

// N queries against M x 16 classes: 2 N M sums stay in registers, and the codes of a few classes in the first cache
// while all queries of the block pass over them. `ahead`, if any: the whole block's codes some bytes further, read once and in
// order: the hardware stops at every page and foresees half a block at a time badly; this does not (and never faults).
template <int N, int M>
void scan_some(const uint8_t* block, const uint8_t* ahead, int64_t words, const int8_t* planes, const int32_t* offset, const float* step,
               const float* scale, const float* base, const float* add, float* est, int64_t stride) {
    __m512i high[N][M], low[N][M];
    #pragma GCC unroll 16
    for (int q = 0; q < N; ++q)
        #pragma GCC unroll 16
        for (int v = 0; v < M; ++v) high[q][v] = low[q][v] = _mm512_setzero_si512();
    for (int64_t j = 0; j < words; ++j) {
        __m512i code[M];
        #pragma GCC unroll 16
        for (int v = 0; v < M; ++v) code[v] = _mm512_loadu_si512(block + j * 256 + v * 64);
        if (M == 4 || ahead != nullptr)
            for (int line = 0; line < 4; ++line) _mm_prefetch(reinterpret_cast<const char*>(ahead) + j * 256 + line * 64, _MM_HINT_T1);
        #pragma GCC unroll 16
        for (int q = 0; q < N; ++q) {
            int32_t x[2];
            std::memcpy(x, planes + (q * words + j) * 8, 8);
            __m512i x0 = _mm512_set1_epi32(x[0]), x1 = _mm512_set1_epi32(x[1]);
            #pragma GCC unroll 16
            for (int v = 0; v < M; ++v) {
                add_dots(high[q][v], code[v], x0);
                add_dots(low[q][v], code[v], x1);
            }
        }
    }
    #pragma GCC unroll 16
    for (int q = 0; q < N; ++q) {
        __m512i o0 = _mm512_set1_epi32(offset[2 * q]), o1 = _mm512_set1_epi32(offset[2 * q + 1]);
        #pragma GCC unroll 16
        for (int v = 0; v < M; ++v) {
            __m512 a = _mm512_cvtepi32_ps(_mm512_sub_epi32(high[q][v], o0));
            __m512 b = _mm512_cvtepi32_ps(_mm512_sub_epi32(low[q][v], o1));
            __m512 dot = _mm512_fmadd_ps(a, _mm512_set1_ps(256.f), b);
            __m512 unit = _mm512_mul_ps(_mm512_loadu_ps(scale + 16 * v), _mm512_set1_ps(step[q]));
            float* to = est + q * stride + 16 * v;
            __m512 start = base == nullptr ? _mm512_loadu_ps(to)
                                           : _mm512_add_ps(_mm512_loadu_ps(base + 16 * v), _mm512_set1_ps(add[q]));
            _mm512_storeu_ps(to, _mm512_fmadd_ps(dot, unit, start));
        }
    }
}

void scan_u8(const uint8_t* block, int64_t words, const int32_t*, const int8_t* planes, const int32_t* offset, const float* step,
             const float* scale, const float* base, const float* add, int n, float* est, int64_t stride) {
    const uint8_t* ahead = block + kReadAhead;
    if (n == 2) return scan_some<2, 4>(block, ahead, words, planes, offset, step, scale, base, add, est, stride);
    if (n == 3) return scan_some<3, 4>(block, ahead, words, planes, offset, step, scale, base, add, est, stride);
    for (int v = 0; v < 4; v += 2) {
        const uint8_t* half = block + 64 * v;
        const float *unit = scale + 16 * v, *from = base == nullptr ? nullptr : base + 16 * v;
        int q = 0;
        auto group = [&](auto some, int width) {
            some(half, v + q == 0 ? ahead : nullptr, words, planes + q * words * 8, offset + 2 * q, step + q, unit, from, add + q,
                 est + q * stride + 16 * v, stride);
            q += width;
        };
        while (q + 6 <= n) group(scan_some<6, 2>, 6);
        if (n - q >= 4) group(scan_some<4, 2>, 4);
        if (n - q >= 2) group(scan_some<2, 2>, 2);
        if (n - q == 1) group(scan_some<1, 2>, 1);
    }
}

inline void add_strip(const uint8_t* block, const Strip& strip, const float* scale, __m512 (&est)[4]) {
    __m512i high[4], low[4];
    #pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) high[v] = low[v] = _mm512_setzero_si512();
    for (int64_t j = 0; j < strip.words; ++j) {
        const uint8_t* at = block + j * 256;
        #pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) _mm_prefetch(reinterpret_cast<const char*>(at) + v * 64 + kReadAhead, _MM_HINT_T1);
        int32_t x[2];
        std::memcpy(x, strip.planes + j * 8, 8);
        const __m512i x0 = _mm512_set1_epi32(x[0]), x1 = _mm512_set1_epi32(x[1]);
        #pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) {
            const __m512i code = _mm512_loadu_si512(at + v * 64);
            add_dots(high[v], code, x0);
            add_dots(low[v], code, x1);
        }
    }
    const __m512i o0 = _mm512_set1_epi32(strip.offset[0]), o1 = _mm512_set1_epi32(strip.offset[1]);
    const __m512 step = _mm512_set1_ps(strip.step);
    #pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
        const __m512 a = _mm512_cvtepi32_ps(_mm512_sub_epi32(high[v], o0)), b = _mm512_cvtepi32_ps(_mm512_sub_epi32(low[v], o1));
        const __m512 unit = _mm512_mul_ps(_mm512_loadu_ps(scale + 16 * v), step);
        est[v] = _mm512_fmadd_ps(_mm512_fmadd_ps(a, _mm512_set1_ps(256.f), b), unit, est[v]);
    }
}

void scan_one(const uint8_t* codes, int64_t words, int64_t first, int64_t blocks, const Strip* strips, int64_t count,
              const float* base, float add, float* est) {
    for (int64_t c = first; c < first + 64 * blocks; c += 64, est += 64) {
        const uint8_t* block = codes + c * words * 4;
        __m512 sum[4];
        #pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) sum[v] = _mm512_add_ps(_mm512_loadu_ps(base + c + 16 * v), _mm512_set1_ps(add));
        for (int64_t s = 0; s < count; ++s) add_strip(block + strips[s].first_word * 256, strips[s], strips[s].scale + c, sum);
        #pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) _mm512_storeu_ps(est + 16 * v, sum[v]);
    }
}
