// Codes of 1, 2, 4 and 8 bits against int8 planes, four classes in a vector. Included after kernels/common/all.inl with LANES 4,
// where `Dots` says how bytes are multiplied:
//
//   Codes, Sum, X         sixteen bytes of codes; sums of four classes; two quads of a query: high, low, high, low, four bytes each
//   registers             how many of them a Sum takes: that of all sums in flight is at most 16
//   most                  queries at once, 1, 2 or 4
//   load(planes), half(planes)       an X from sixteen, or from eight bytes
//   take<Bits, Group>(word)          one group's codes as `add` wants them: those of eight bits become code - 128 where `centred`
//   add<At>(sum, codes, x)           sum += <codes, word At of x>, of each class
//   add_all(sum, codes, planes)      sum += <codes, sixteen numbers>, of one class, in whichever lanes
//   total(sum)            [4] sums of the classes
//   vectors<M>(from, next, codes)    M vectors of codes, one behind the other; `from` goes on by `next`
//
// Where Dots is `centred`, it multiplies bytes of one kind alone. Codes row by row become code - 128, an instruction for every
// sixteen of them, and the sums come out less 128 times the plane's sum. Blocks of them stay as they are; the planes are raised by 128,
// an instruction for every two words, and Kernels::summed asks for what takes that off again:
//
//   raise(x)              x + 128, unsigned
//   add_raised<At>(sum, codes, x)    as add, of unsigned bytes

template <int Bits, int N, int M, typename Ops = Dots>
struct Scan {
    static constexpr bool raised = Bits == 8 && Ops::centred;
    using Codes = typename Ops::Codes;
    using X = typename Ops::X;
    typename Ops::Sum high[N][M], low[N][M];

    template <int At>
    inline void quad(const Codes (&codes)[M], const X (&x)[N]) {
#pragma GCC unroll 16
        for (int v = 0; v < M; ++v)
#pragma GCC unroll 16
            for (int q = 0; q < N; ++q) {
                if constexpr (raised) {
                    Ops::template add_raised<2 * At>(high[q][v], codes[v], x[q]);
                    Ops::template add_raised<2 * At + 1>(low[q][v], codes[v], x[q]);
                } else {
                    Ops::template add<2 * At>(high[q][v], codes[v], x[q]);
                    Ops::template add<2 * At + 1>(low[q][v], codes[v], x[q]);
                }
            }
    }

    template <int Group>
    inline void group_of(const Codes (&word)[M], const X (&x)[N]) {
        Codes u[M];
#pragma GCC unroll 16
        for (int v = 0; v < M; ++v) {
            if constexpr (raised) u[v] = word[v];
            else u[v] = Ops::template take<Bits, Group>(word[v]);
        }
        quad<Group % 2>(u, x);
    }

    // Two quads of each query; those of a query are `apart` bytes behind those of the one before.
    static inline void next_of(const int8_t* planes, int64_t apart, X (&x)[N]) {
#pragma GCC unroll 16
        for (int q = 0; q < N; ++q) {
            x[q] = Ops::load(planes + q * apart);
            if constexpr (raised) x[q] = Ops::raise(x[q]);
        }
    }

    // All words, but for the last of an odd number of 8-bit ones.
    inline void words_of(const uint8_t* block, int64_t words, const int8_t* planes) {
        constexpr int kGroups = 8 / Bits;
        constexpr int64_t kNext = 4 * kBlock;  // bytes from a word to the next
        const int64_t apart = words * kGroups * 8;
        X x[N];
        Codes word[M];
        if constexpr (Bits == 8) {
            for (const int8_t* end = planes + words / 2 * 16; planes != end; planes += 16) {
                next_of(planes, apart, x);
                Ops::template vectors<M>(block, kNext, word);
                group_of<0>(word, x);
                Ops::template vectors<M>(block, kNext, word);
                group_of<1>(word, x);
            }
        } else {
            for (const int8_t* end = planes + apart; planes != end; planes += kGroups * 8) {
                Ops::template vectors<M>(block, kNext, word);
                next_of(planes, apart, x);
                group_of<0>(word, x), group_of<1>(word, x);
                if constexpr (Bits < 4) next_of(planes + 16, apart, x), group_of<2>(word, x), group_of<3>(word, x);
                if constexpr (Bits < 2) {
                    next_of(planes + 32, apart, x), group_of<4>(word, x), group_of<5>(word, x);
                    next_of(planes + 48, apart, x), group_of<6>(word, x), group_of<7>(word, x);
                }
            }
        }
    }

    inline void last_of(const uint8_t* block, const int8_t* planes, int64_t apart) {
        X x[N];
        Codes word[M];
        for (int q = 0; q < N; ++q) {
            x[q] = Ops::half(planes + q * apart);
            if constexpr (raised) x[q] = Ops::raise(x[q]);
        }
        Ops::template vectors<M>(block, 0, word);
        group_of<0>(word, x);
    }
};

// [query][vector][plane] sums, written or added. Functions of their own: beside anything else, compilers run out of registers for them.
template <int Bits, int N, int M>
__attribute__((noinline)) void sums_of(const uint8_t* block, int64_t words, const int8_t* planes, I* sums) {
    Scan<Bits, N, M> all{};
    all.words_of(block, words, planes);
#pragma GCC unroll 16
    for (int i = 0; i < N * M; ++i) sums[2 * i] = Dots::total(all.high[i / M][i % M]), sums[2 * i + 1] = Dots::total(all.low[i / M][i % M]);
}
template <int N, int M>
__attribute__((noinline)) void add_last(const uint8_t* block, int64_t words, const int8_t* planes, I* sums) {
    Scan<8, N, M> all{};
    all.last_of(block + (words - 1) * 4 * kBlock, planes + (words - 1) * 8, words * 8);
#pragma GCC unroll 16
    for (int i = 0; i < N * M; ++i) sums[2 * i] += Dots::total(all.high[i / M][i % M]), sums[2 * i + 1] += Dots::total(all.low[i / M][i % M]);
}

// What the sums of four classes say of their estimates; `sums` of their codes, where planes were raised.
template <int Bits>
inline void join_sums(I high, I low, const int32_t* sums, const int32_t* offset, float step, const float* scale, const float* base,
                      float add, float* est) {
    if (Bits < 8) high += high, low += low;
    if constexpr (Bits == 8 && Dots::centred) {
        typedef uint32_t W __attribute__((vector_size(16)));  // beyond 2^31 on the way, and back
        W codes;
        std::memcpy(&codes, sums, sizeof codes);
        high = (I)((W)high - (codes << 7)), low = (I)((W)low - (codes << 7));
    }
    high -= offset[0], low -= offset[1];
    const F dot = 256.f * __builtin_convertvector(high, F) + __builtin_convertvector(low, F);
    const F start = base == nullptr ? load(est) : load(base) + add;
    store(est, start + dot * (load(scale) * step));
}

// All 64 classes of a block, M vectors after M vectors.
template <int Bits, int N, int M>
void scan_across(const uint8_t* block, int64_t words, const int32_t* sums, const int8_t* planes, const int32_t* offset,
                 const float* step, const float* scale, const float* base, const float* add, float* est, int64_t stride) {
    for (int c = 0; c < kBlock; c += 4 * M) {
        I made[2 * N * M];
        sums_of<Bits, N, M>(block + 4 * c, words, planes, made);
        if (Bits == 8 && words % 2 != 0) add_last<N, M>(block + 4 * c, words, planes, made);
        for (int q = 0; q < N; ++q)
            for (int v = 0; v < M; ++v) {
                const int at = c + 4 * v;
                const I* both = made + 2 * (q * M + v);
                join_sums<Bits>(both[0], both[1], sums == nullptr ? nullptr : sums + at, offset + 2 * q, step[q], scale + at,
                                base == nullptr ? nullptr : base + at, base == nullptr ? 0 : add[q], est + q * stride + at);
            }
    }
}

template <int Bits>
void scan_bits(const uint8_t* block, int64_t words, const int32_t* sums, const int8_t* planes, const int32_t* offset, const float* step,
               const float* scale, const float* base, const float* add, int n, float* est, int64_t stride) {
    constexpr int R = Dots::registers;
    int q = 0;
    const auto some = [&](auto scan, int width) {
        scan(block, words, sums, planes + q * words * (64 / Bits), offset + 2 * q, step + q, scale, base,
             base == nullptr ? nullptr : add + q, est + q * stride, stride);
        q += width;
    };
    if constexpr (Dots::most == 4)
        while (n - q >= 4) some(scan_across<Bits, 4, 2 / R>, 4);
    while (n - q >= 2) some(scan_across<Bits, 2, 4 / R>, 2);
    if (n - q == 1) some(scan_across<Bits, 1, 8 / R>, 1);
}

// Inline: a translation unit that has more for several queries brings its own.
inline void scan_u8(const uint8_t* block, int64_t words, int bits, const int32_t* sums, const int8_t* planes, const int32_t* offset,
                    const float* step, const float* scale, const float* base, const float* add, int n, float* est, int64_t stride) {
    const auto scan = bits == 8 ? scan_bits<8> : bits == 4 ? scan_bits<4> : bits == 2 ? scan_bits<2> : scan_bits<1>;
    scan(block, words, sums, planes, offset, step, scale, base, add, n, est, stride);
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
