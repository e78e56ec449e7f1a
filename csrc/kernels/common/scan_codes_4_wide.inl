// Codes against int8 planes, four classes in a vector. Included after kernels/common/all.inl with LANES 4, where `Dots` says how bytes are
// multiplied:
//
//   Codes, Sum, X         sixteen bytes of codes; sums of four classes; two quads of a query: high, low, high, low, four bytes each
//   registers             how many of them a Sum takes: that of all sums in flight is at most 16
//   most                  queries at once, 1, 2 or 4
//   load(planes), half(planes)       an X from sixteen, or from eight bytes
//   add<At>(sum, codes, x)           sum += <codes, word At of x>, of each class
//   total(sum)            [4] sums of the classes
//   vectors<M>(from, next, codes)    M vectors of codes, one behind the other; `from` goes on by `next`
//
// Where Dots is `centred`, it multiplies bytes of one kind alone: codes stay as they are, the planes are raised by 128, an instruction for
// every two words, and Kernels::summed asks for what takes that off again:
//
//   raise(x)              x + 128, unsigned

template <int N, int M>
struct Scan {
    using Codes = typename Dots::Codes;
    using X = typename Dots::X;
    typename Dots::Sum high[N][M], low[N][M];

    template <int At>
    inline void quad(const Codes (&codes)[M], const X (&x)[N]) {
#pragma GCC unroll 16
        for (int v = 0; v < M; ++v)
#pragma GCC unroll 16
            for (int q = 0; q < N; ++q) {
                Dots::template add<2 * At>(high[q][v], codes[v], x[q]);
                Dots::template add<2 * At + 1>(low[q][v], codes[v], x[q]);
            }
    }

    template <typename Ops = Dots>
    static inline X raised(X x) {
        if constexpr (Ops::centred) return Ops::raise(x);
        else return x;
    }

    // All words, but for the last of an odd number.
    inline void words_of(const uint8_t* block, int64_t words, const int8_t* planes) {
        constexpr int64_t kNext = 4 * kBlock;  // bytes from a word to the next
        X x[N];
        Codes word[M];
        for (const int8_t* end = planes + words / 2 * 16; planes != end; planes += 16) {
#pragma GCC unroll 16
            for (int q = 0; q < N; ++q) x[q] = raised(Dots::load(planes + q * words * 8));
            Dots::template vectors<M>(block, kNext, word);
            quad<0>(word, x);
            Dots::template vectors<M>(block, kNext, word);
            quad<1>(word, x);
        }
    }

    inline void last_of(const uint8_t* block, const int8_t* planes, int64_t apart) {
        X x[N];
        Codes word[M];
        for (int q = 0; q < N; ++q) x[q] = raised(Dots::half(planes + q * apart));
        Dots::template vectors<M>(block, 0, word);
        quad<0>(word, x);
    }
};

// [query][vector][plane] sums, written or added. Functions of their own: beside anything else, compilers run out of registers for them.
template <int N, int M>
__attribute__((noinline)) void sums_of(const uint8_t* block, int64_t words, const int8_t* planes, I* sums) {
    Scan<N, M> all{};
    all.words_of(block, words, planes);
#pragma GCC unroll 16
    for (int i = 0; i < N * M; ++i) sums[2 * i] = Dots::total(all.high[i / M][i % M]), sums[2 * i + 1] = Dots::total(all.low[i / M][i % M]);
}
template <int N, int M>
__attribute__((noinline)) void add_last(const uint8_t* block, int64_t words, const int8_t* planes, I* sums) {
    Scan<N, M> all{};
    all.last_of(block + (words - 1) * 4 * kBlock, planes + (words - 1) * 8, words * 8);
#pragma GCC unroll 16
    for (int i = 0; i < N * M; ++i) sums[2 * i] += Dots::total(all.high[i / M][i % M]), sums[2 * i + 1] += Dots::total(all.low[i / M][i % M]);
}

// What the sums of four classes say of their estimates; `sums` of their codes, where planes were raised.
inline void join_sums(I high, I low, const int32_t* sums, const int32_t* offset, float step, const float* scale, const float* base,
                      float add, float* est) {
    if constexpr (Dots::centred) {
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
template <int N, int M>
void scan_across(const uint8_t* block, int64_t words, const int32_t* sums, const int8_t* planes, const int32_t* offset,
                 const float* step, const float* scale, const float* base, const float* add, float* est, int64_t stride) {
    for (int c = 0; c < kBlock; c += 4 * M) {
        I made[2 * N * M];
        sums_of<N, M>(block + 4 * c, words, planes, made);
        if (words % 2 != 0) add_last<N, M>(block + 4 * c, words, planes, made);
        for (int q = 0; q < N; ++q)
            for (int v = 0; v < M; ++v) {
                const int at = c + 4 * v;
                const I* both = made + 2 * (q * M + v);
                join_sums(both[0], both[1], sums == nullptr ? nullptr : sums + at, offset + 2 * q, step[q], scale + at,
                          base == nullptr ? nullptr : base + at, base == nullptr ? 0 : add[q], est + q * stride + at);
            }
    }
}

// Inline: a translation unit that has more for several queries brings its own.
inline void scan_u8(const uint8_t* block, int64_t words, const int32_t* sums, const int8_t* planes, const int32_t* offset, const float* step,
                    const float* scale, const float* base, const float* add, int n, float* est, int64_t stride) {
    constexpr int R = Dots::registers;
    int q = 0;
    const auto some = [&](auto scan, int width) {
        scan(block, words, sums, planes + q * words * 8, offset + 2 * q, step + q, scale, base, base == nullptr ? nullptr : add + q,
             est + q * stride, stride);
        q += width;
    };
    if constexpr (Dots::most == 4)
        while (n - q >= 4) some(scan_across<4, 2 / R>, 4);
    while (n - q >= 2) some(scan_across<2, 4 / R>, 2);
    if (n - q == 1) some(scan_across<1, 8 / R>, 1);
}
