// AArch64 with the int8 matrix instructions: USDOT takes codes as they are, and USMMLA two planes of a query at once.
#include <arm_neon.h>

#include <cmath>
#include <cstring>

#include "kernels/cpu.h"
#include "kernels/kernels.h"

namespace headlong {
namespace {

#include "kernels/common/aarch64.inl"

struct Dots : ByteVectors {
    using Sum = int32x4_t;
    static constexpr int registers = 1;
    static constexpr int most = 4;
    static constexpr bool centred = false;

    template <int At>
    static void add(Sum& sum, Codes codes, X x) {
        sum = vusdotq_laneq_s32(sum, codes, x, At);
    }
    static I total(Sum sum) { return (I)sum; }
};

#include "kernels/common/scan_codes_4_wide.inl"

// ---- several queries: USMMLA multiplies eight codes each of two classes by both planes of a query ----

// Of two words of four classes, eight codes of the first two classes, and of the others.
inline uint8x16_t first_two(uint8x16_t a, uint8x16_t b) { return (uint8x16_t)vzip1q_u32((uint32x4_t)a, (uint32x4_t)b); }
inline uint8x16_t last_two(uint8x16_t a, uint8x16_t b) { return (uint8x16_t)vzip2q_u32((uint32x4_t)a, (uint32x4_t)b); }

template <int N, int M>
struct Pairs {
    int32x4_t sum[N][2 * M];  // high and low of a class, high and low of its neighbour

    inline void step(const uint8x16_t (&a)[M], const uint8x16_t (&b)[M], const int8x16_t (&x)[N]) {
#pragma GCC unroll 4
        for (int v = 0; v < M; ++v) {
            const uint8x16_t near = first_two(a[v], b[v]), far = last_two(a[v], b[v]);
#pragma GCC unroll 8
            for (int q = 0; q < N; ++q) {
                sum[q][2 * v] = vusmmlaq_s32(sum[q][2 * v], near, x[q]);
                sum[q][2 * v + 1] = vusmmlaq_s32(sum[q][2 * v + 1], far, x[q]);
            }
        }
    }

    inline void words_of(const uint8_t* block, int64_t words, const int8_t* planes) {
        constexpr int64_t kNext = 4 * kBlock;  // bytes from a word to the next
        const uint8x16_t planes_apart = {0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15};  // high, low, high, low
        uint8x16_t word[M], other[M];
        int8x16_t x[N];
        int64_t j = 0;
        for (; j + 2 <= words; j += 2) {
#pragma GCC unroll 8
            for (int q = 0; q < N; ++q) x[q] = vqtbl1q_s8(vld1q_s8(planes + (q * words + j) * 8), planes_apart);
#pragma GCC unroll 4
            for (int v = 0; v < M; ++v) word[v] = vld1q_u8(block + 16 * v), other[v] = vld1q_u8(block + kNext + 16 * v);
            block += 2 * kNext;
            step(word, other, x);
        }
        if (j == words) return;
        for (int q = 0; q < N; ++q) x[q] = vqtbl1q_s8(Dots::half(planes + (q * words + j) * 8), planes_apart);
        load_vectors<M>(block, kNext, word);
        step(word, word, x);  // the second half of x is 0
    }
};

// N queries against 64 classes, 4 M at once.
template <int N, int M>
void pairs_across(const uint8_t* block, int64_t words, const int8_t* planes, const int32_t* offset, const float* step,
                  const float* scale, const float* base, const float* add, float* est, int64_t stride) {
    for (int c = 0; c < kBlock; c += 4 * M) {
        Pairs<N, M> all{};
        all.words_of(block + 4 * c, words, planes);
#pragma GCC unroll 8
        for (int q = 0; q < N; ++q)
#pragma GCC unroll 4
            for (int v = 0; v < M; ++v) {
                const I high = (I)vuzp1q_s32(all.sum[q][2 * v], all.sum[q][2 * v + 1]);
                const I low = (I)vuzp2q_s32(all.sum[q][2 * v], all.sum[q][2 * v + 1]);
                const int at = c + 4 * v;
                join_sums(high, low, nullptr, offset + 2 * q, step[q], scale + at, base == nullptr ? nullptr : base + at,
                                base == nullptr ? 0 : add[q], est + q * stride + at);
            }
    }
}

void scan_pairs(const uint8_t* block, int64_t words, const int32_t*, const int8_t* planes, const int32_t* offset, const float* step,
                const float* scale, const float* base, const float* add, int n, float* est, int64_t stride) {
    int q = 0;
    const auto some = [&](auto scan, int width) {
        scan(block, words, planes + q * words * 8, offset + 2 * q, step + q, scale, base, base == nullptr ? nullptr : add + q,
             est + q * stride, stride);
        q += width;
    };
    while (n - q >= 4) some(pairs_across<4, 2>, 4);  // sums of six queries do not fit into the registers
    if (n - q >= 2) some(pairs_across<2, 4>, 2);
    const auto last = [](const uint8_t* codes, int64_t many, auto... rest) { scan_across<1, 8>(codes, many, nullptr, rest...); };
    if (n - q == 1) some(last, 1);
}

#include "kernels/common/table.inl"

}  // namespace

const uint64_t i8mm_features = compiled_features();

const Kernels* i8mm_kernels() {
    static constexpr Kernels table = table_of("i8mm", scan_pairs, 0.35);
    return &table;
}

}  // namespace headlong
