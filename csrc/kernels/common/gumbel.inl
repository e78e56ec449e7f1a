// Gumbel noise of classes.

constexpr float kGumbelSlop = 1e-4f;  // the roundings of most_gumbel

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011), one counter for four neighbouring classes.
#ifdef PRODUCTS  // of the low halves of 64-bit lanes: compilers multiply all 64 bits
typedef uint64_t W __attribute__((vector_size(LANES * 4)));

// What is above a word's 32 bits is never looked at.
void noise_of(uint64_t seed, uint64_t row, uint32_t draw, int64_t first, int64_t n, uint32_t* out) {
    constexpr int kWide = LANES / 2, kChains = 3;  // products wait for each other: three chains of them fill the time
    W lane{};
    for (int i = 0; i < kWide; ++i) lane[i] = static_cast<uint64_t>(i);
    for (int64_t start = 0; start < n; start += 4 * kWide * kChains) {
        W c0[kChains], c1[kChains], c2[kChains], c3[kChains];
        for (int i = 0; i < kChains; ++i) {
            c0[i] = lane + ((static_cast<uint64_t>(first + start) >> 2) + static_cast<uint64_t>(kWide * i));
            c1[i] = W{} + draw;
            c2[i] = W{} + static_cast<uint32_t>(row);
            c3[i] = W{} + (row >> 32);
        }
        uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
        for (int round = 0; round < 10; ++round) {
            for (int i = 0; i < kChains; ++i) {
                const W p0 = PRODUCTS(c0[i], W{} + 0xD2511F53u), p1 = PRODUCTS(c2[i], W{} + 0xCD9E8D57u);
                c0[i] = (p1 >> 32) ^ c1[i] ^ (W{} + k0);
                c1[i] = p1;
                c2[i] = (p0 >> 32) ^ c3[i] ^ (W{} + k1);
                c3[i] = p0;
            }
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        for (int i = 0; i < kChains; ++i) {
            const W even = (c0[i] & 0xFFFFFFFFu) | c1[i] << 32, odd = (c2[i] & 0xFFFFFFFFu) | c3[i] << 32;
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
        uint64_t c0[kCounters], c1[kCounters], c2[kCounters], c3[kCounters];
        uint64_t group = static_cast<uint64_t>(first + start) >> 2;
        for (int i = 0; i < kCounters; ++i) {
            c0[i] = static_cast<uint32_t>(group + i);
            c1[i] = draw;
            c2[i] = static_cast<uint32_t>(row);
            c3[i] = row >> 32;
        }
        uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
        for (int round = 0; round < 10; ++round) {
            for (int i = 0; i < kCounters; ++i) {
                uint64_t p0 = (c0[i] & 0xFFFFFFFFu) * 0xD2511F53u, p1 = (c2[i] & 0xFFFFFFFFu) * 0xCD9E8D57u;
                c0[i] = (p1 >> 32) ^ (c1[i] & 0xFFFFFFFFu) ^ k0;
                c1[i] = p1 & 0xFFFFFFFFu;
                c2[i] = (p0 >> 32) ^ (c3[i] & 0xFFFFFFFFu) ^ k1;
                c3[i] = p0 & 0xFFFFFFFFu;
            }
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        int64_t left = n - start < 4 * kCounters ? (n - start) / 4 : kCounters;
        for (int64_t i = 0; i < left; ++i) {
            uint32_t* words = out + start + 4 * i;
            words[0] = static_cast<uint32_t>(c0[i]);
            words[1] = static_cast<uint32_t>(c1[i]);
            words[2] = static_cast<uint32_t>(c2[i]);
            words[3] = static_cast<uint32_t>(c3[i]);
        }
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
    const float fixed = kGumbelSlop + link.slop * beta;
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
