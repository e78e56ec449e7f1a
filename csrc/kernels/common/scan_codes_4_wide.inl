// Codes of 1, 2, 4 and 8 bits against int8 planes, four classes in a vector. Included after kernels/common/all.inl with LANES 4,
// where `Dots` says how bytes are multiplied:
//
//   Codes, Sum, X         sixteen bytes of codes; sums of four classes; two quads of a query: high, low, high, low, four bytes each
//   registers             how many of them a Sum takes: that of all sums in flight is at most 24
//   load(planes), half(planes)       an X from sixteen, or from eight bytes
//   take<Bits, Group>(word)          one group's codes as `add` wants them: those of eight bits become code - 128 where `centred`
//   add<At>(sum, codes, x)           sum += <codes, word At of x>, of each class
//   add_all(sum, codes, planes)      sum += <codes, sixteen numbers>, of one class, in whichever lanes
//   total(sum)            [4] sums of the classes
//   vectors<M>(from, next, codes)    M vectors of codes, one behind the other; `from` goes on by `next`
//
// Where codes are centred, the sums come out less 128 times the plane's sum, which is what `offset` is for eight bits.

template <int Bits, int N, int M>
struct Scan {
    using Codes = Dots::Codes;
    Dots::Sum high[N][M], low[N][M];

    template <int At>
    inline void quad(const Codes (&codes)[M], const Dots::X (&x)[N]) {
#pragma GCC unroll 16
        for (int q = 0; q < N; ++q)
#pragma GCC unroll 16
            for (int v = 0; v < M; ++v) {
                Dots::add<2 * At>(high[q][v], codes[v], x[q]);
                Dots::add<2 * At + 1>(low[q][v], codes[v], x[q]);
            }
    }

    template <int Group>
    inline void group_of(const Codes (&word)[M], const Dots::X (&x)[N]) {
        Codes u[M];
#pragma GCC unroll 16
        for (int v = 0; v < M; ++v) u[v] = Dots::take<Bits, Group>(word[v]);
        quad<Group % 2>(u, x);
    }

    inline void words_of(const uint8_t* block, int64_t words, const int8_t* planes) {
        constexpr int kGroups = 8 / Bits;
        constexpr int64_t kNext = 4 * kBlock;  // bytes from a word to the next
        Dots::X x[N];
        Codes word[M];
        const auto next = [&](int64_t at) {
#pragma GCC unroll 16
            for (int q = 0; q < N; ++q) x[q] = Dots::load(planes + q * words * kGroups * 8 + at);
        };
        int64_t j = 0;
        if constexpr (Bits == 8) {
            for (; j + 2 <= words; j += 2) {
                next(j * 8);
                Dots::vectors<M>(block, kNext, word);
                group_of<0>(word, x);
                Dots::vectors<M>(block, kNext, word);
                group_of<1>(word, x);
            }
            if (j < words) {
                for (int q = 0; q < N; ++q) x[q] = Dots::half(planes + (q * words + j) * 8);
                Dots::vectors<M>(block, kNext, word);
                group_of<0>(word, x);
            }
        } else {
            for (; j < words; ++j) {
                Dots::vectors<M>(block, kNext, word);
                next(j * kGroups * 8);
                group_of<0>(word, x), group_of<1>(word, x);
                if constexpr (Bits < 4) next(j * kGroups * 8 + 16), group_of<2>(word, x), group_of<3>(word, x);
                if constexpr (Bits < 2) {
                    next(j * kGroups * 8 + 32), group_of<4>(word, x), group_of<5>(word, x);
                    next(j * kGroups * 8 + 48), group_of<6>(word, x), group_of<7>(word, x);
                }
            }
        }
    }
};

// What the sums of four classes say of their estimates.
template <int Bits>
inline void join_sums(I high, I low, const int32_t* offset, float step, const float* scale, const float* base, float add, float* est) {
    if (Bits < 8) high += high, low += low;
    if (Bits < 8 || !Dots::centred) high -= offset[0], low -= offset[1];
    const F dot = 256.f * __builtin_convertvector(high, F) + __builtin_convertvector(low, F);
    const F start = base == nullptr ? load(est) : load(base) + add;
    store(est, start + dot * (load(scale) * step));
}

template <int Bits, int N, int M>
void scan_some(const uint8_t* block, int64_t words, const int8_t* planes, const int32_t* offset, const float* step,
               const float* scale, const float* base, const float* add, float* est, int64_t stride) {
    Scan<Bits, N, M> sums{};
    sums.words_of(block, words, planes);
#pragma GCC unroll 16
    for (int q = 0; q < N; ++q)
#pragma GCC unroll 16
        for (int v = 0; v < M; ++v)
            join_sums<Bits>(Dots::total(sums.high[q][v]), Dots::total(sums.low[q][v]), offset + 2 * q, step[q], scale + 4 * v,
                            base == nullptr ? nullptr : base + 4 * v, base == nullptr ? 0 : add[q], est + q * stride + 4 * v);
}

// All 64 classes of a block, M vectors after M vectors.
template <int Bits, int N, int M>
void scan_across(const uint8_t* block, int64_t words, const int8_t* planes, const int32_t* offset, const float* step,
                 const float* scale, const float* base, const float* add, float* est, int64_t stride) {
    for (int c = 0; c < kBlock; c += 4 * M)
        scan_some<Bits, N, M>(block + 4 * c, words, planes, offset, step, scale + c, base == nullptr ? nullptr : base + c, add,
                              est + c, stride);
}

template <int Bits>
void scan_bits(const uint8_t* block, int64_t words, const int8_t* planes, const int32_t* offset, const float* step,
               const float* scale, const float* base, const float* add, int n, float* est, int64_t stride) {
    constexpr int R = Dots::registers;
    int q = 0;
    const auto some = [&](auto scan, int width) {
        scan(block, words, planes + q * words * (64 / Bits), offset + 2 * q, step + q, scale, base, base == nullptr ? nullptr : add + q,
             est + q * stride, stride);
        q += width;
    };
    while (n - q >= 4) some(scan_across<Bits, 4, 2 / R>, 4);
    if (n - q >= 2) some(scan_across<Bits, 2, 4 / R>, 2);
    if (n - q == 1) some(scan_across<Bits, 1, 8 / R>, 1);
}

// Inline: a translation unit that has more for several queries brings its own.
inline void scan_u8(const uint8_t* block, int64_t words, int bits, const int8_t* planes, const int32_t* offset, const float* step,
                    const float* scale, const float* base, const float* add, int n, float* est, int64_t stride) {
    const auto scan = bits == 8 ? scan_bits<8> : bits == 4 ? scan_bits<4> : bits == 2 ? scan_bits<2> : scan_bits<1>;
    scan(block, words, planes, offset, step, scale, base, add, n, est, stride);
}

// ---- codes row by row ----

template <int Bits, int Group>
inline void dot_group(const uint8_t* row, int64_t count, const int8_t* high, const int8_t* low, Dots::Sum& a, Dots::Sum& b) {
    if constexpr (Group * Bits < 8) {
        const int8_t *x = high + Group * count, *y = low + Group * count;
        int64_t i = 0;
        for (; i + 16 <= count; i += 16) {
            const uint8_t* from = row + i;
            Dots::Codes word[1];
            Dots::vectors<1>(from, 16, word);
            const Dots::Codes u = Dots::take<Bits, Group>(word[0]);
            Dots::add_all(a, u, x + i);
            Dots::add_all(b, u, y + i);
        }
        if (i < count) {
            uint8_t last[16] = {};
            int8_t x_last[16] = {}, y_last[16] = {};
            std::memcpy(last, row + i, count - i);
            std::memcpy(x_last, x + i, count - i);
            std::memcpy(y_last, y + i, count - i);
            const uint8_t* from = last;
            Dots::Codes word[1];
            Dots::vectors<1>(from, 16, word);
            const Dots::Codes u = Dots::take<Bits, Group>(word[0]);
            Dots::add_all(a, u, x_last);
            Dots::add_all(b, u, y_last);
        }
    }
}

inline int32_t plane_sum(const int8_t* plane, int64_t count) {
    int32_t sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += plane[i];
    return sum;
}

template <int Bits>
void dot_bits(const uint8_t* codes, int64_t stride, const int32_t* ids, int64_t n, int64_t count, const int8_t* high,
              const int8_t* low, int32_t* dots) {
    constexpr int kTimes = Bits == 8 ? 1 : 2;
    constexpr bool kBack = Bits == 8 && Dots::centred;  // what centred codes lack
    const int32_t more[2] = {kBack ? 128 * plane_sum(high, count) : 0, kBack ? 128 * plane_sum(low, count) : 0};
    for (int64_t j = 0; j < n; ++j) {
        if (j + 4 < n)
            for (int64_t i = 0; i < count; i += 64) __builtin_prefetch(codes + ids[j + 4] * stride + i);
        const uint8_t* row = codes + ids[j] * stride;
        Dots::Sum a{}, b{};
        dot_group<Bits, 0>(row, count, high, low, a, b), dot_group<Bits, 1>(row, count, high, low, a, b);
        dot_group<Bits, 2>(row, count, high, low, a, b), dot_group<Bits, 3>(row, count, high, low, a, b);
        dot_group<Bits, 4>(row, count, high, low, a, b), dot_group<Bits, 5>(row, count, high, low, a, b);
        dot_group<Bits, 6>(row, count, high, low, a, b), dot_group<Bits, 7>(row, count, high, low, a, b);
        const I x = Dots::total(a), y = Dots::total(b);
        dots[2 * j] = kTimes * ((x[0] + x[1]) + (x[2] + x[3])) + more[0];
        dots[2 * j + 1] = kTimes * ((y[0] + y[1]) + (y[2] + y[3])) + more[1];
    }
}

void dot_codes(const uint8_t* codes, int64_t stride, const int32_t* ids, int64_t n, int64_t count, int bits, const int8_t* high,
               const int8_t* low, int32_t* dots) {
    const auto dot = bits == 8 ? dot_bits<8> : bits == 4 ? dot_bits<4> : bits == 2 ? dot_bits<2> : dot_bits<1>;
    dot(codes, stride, ids, n, count, high, low, dots);
}
