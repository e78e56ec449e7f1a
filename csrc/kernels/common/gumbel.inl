// Gumbel noise of classes.

constexpr float kGumbelSlop = 1e-4f;  // the roundings of most_gumbel

// The words of classes first .. first + n - 1, four neighbours to a counter.
#ifdef PRODUCTS  // of the low halves of 64-bit lanes: compilers multiply all 64 bits
typedef uint64_t W __attribute__((vector_size(LANES * 4)));

void noise_of(uint64_t seed, uint64_t row, uint32_t draw, int64_t first, int64_t n, uint32_t* out) {
    constexpr int kWide = LANES / 2, kChains = 3;  // products wait for each other: three chains of them fill the time
    W lane{};
    for (int i = 0; i < kWide; ++i) lane[i] = static_cast<uint64_t>(i);
    for (int64_t start = 0; start < n; start += 4 * kWide * kChains) {
        W c[4][kChains];
        for (int i = 0; i < kChains; ++i) {
            c[0][i] = lane + ((static_cast<uint64_t>(first + start) >> 2) + static_cast<uint64_t>(kWide * i));
            c[1][i] = W{} + draw;
            c[2][i] = W{} + static_cast<uint32_t>(row);
            c[3][i] = W{} + (row >> 32);
        }
        philox(c, seed, [](W a, W b) { return PRODUCTS(a, b); });
        for (int i = 0; i < kChains; ++i) {
            const W even = (c[0][i] & 0xFFFFFFFFu) | c[1][i] << 32, odd = (c[2][i] & 0xFFFFFFFFu) | c[3][i] << 32;
            uint64_t words[2 * kWide];
            for (int j = 0; j < kWide; ++j) words[2 * j] = even[j], words[2 * j + 1] = odd[j];
            const int64_t at = start + 4 * kWide * i, left = n - at < 4 * kWide ? n - at : 4 * kWide;
            if (left == 4 * kWide) std::memcpy(out + at, words, sizeof words);
            else if (left > 0) std::memcpy(out + at, words, static_cast<size_t>(left) * 4);
        }
    }
}
#else
void noise_of(uint64_t seed, uint64_t row, uint32_t draw, int64_t first, int64_t n, uint32_t* out) {
    constexpr int kCounters = 2 * LANES;
    for (int64_t start = 0; start < n; start += 4 * kCounters) {
        uint64_t c[4][kCounters];
        const uint64_t group = static_cast<uint64_t>(first + start) >> 2;
        for (int i = 0; i < kCounters; ++i) {
            c[0][i] = group + static_cast<uint64_t>(i);
            c[1][i] = draw;
            c[2][i] = static_cast<uint32_t>(row);
            c[3][i] = row >> 32;
        }
        philox(c, seed, [](uint64_t a, uint64_t b) { return (a & 0xFFFFFFFFu) * b; });
        const int64_t left = n - start < 4 * kCounters ? (n - start) / 4 : kCounters;
        for (int64_t i = 0; i < left; ++i)
            for (int j = 0; j < 4; ++j) out[start + 4 * i + j] = static_cast<uint32_t>(c[j][i]);
    }
}
#endif

int64_t high_words_of(const uint32_t* words, int64_t n, uint32_t least, int32_t* out) {
    int64_t count = 0;
    const U from = U{} + least;
    for (int64_t i = 0; i < n; i += LANES) {
        U w;
        std::memcpy(&w, words + i, sizeof w);
        const I mask = w >= from;
        if (!any(mask)) continue;
        for (int j = 0; j < LANES; ++j) {
            out[count] = static_cast<int32_t>(i) + j;
            count += words[i + j] >= least;
        }
    }
    return count;
}

// No less than the noise of any class whose high word this is. Its gap 1 - u is ~word / 2^32 or more, -log(u) is more than the first
// terms of its series in the gap, none of them negative, and a parabola through the powers of two, lowered a little, is below the
// logarithm of that: 0.01 too much for most classes, 0.2 for the tenth with the least noise.
inline F most_gumbel(U words) {
    F gap = __builtin_convertvector(~words, F) * 2.3283059e-10f;  // 2^-32, less 2^-22 of it for the conversion
    F p = gap * 0.16666667f + 0.2f;
    p = p * gap + 0.25f;
    p = p * gap + 0.33333334f;
    p = p * gap + 0.5f;
    F e = (p * gap + 1.f) * gap;
    I raw = bits(e);
    F m = floats((raw & 0x007FFFFF) | 0x3F800000);
    F log2 = __builtin_convertvector(raw, F) * 1.1920929e-7f + m * (1.f - m * 0.33333334f) - 127.6722f;
    return log2 * -0.69314718f;
}

float gumbel_keys_of(const float* est, const float* rad, const uint32_t* words, int64_t n, Link link, float beta, float* upper) {
    const float of_link = link.form == LinkForm::softcap ? link.a * 0x1p-19f : link.slop;  // a cap's own roundings are of its size
    const float fixed = kGumbelSlop + of_link * beta;
    F most = splat(-kInfinity);
    for (int64_t i = 0; i < n; i += LANES) {
        F e = load(est + i), f = vlink(link, e + load(rad + i)) * beta;
        U w;
        std::memcpy(&w, words + i, sizeof w);
        F key = f + (vmax(f, -f) * 4.8e-7f + fixed) + most_gumbel(w);
        const F there = pick(e > splat(-kInfinity), key, splat(-kInfinity));
        store(upper + i, there);
        most = vmax(there, most);
    }
    float top = -kInfinity;
    for (int i = 0; i < LANES; ++i) top = most[i] > top ? most[i] : top;
    return top;
}
