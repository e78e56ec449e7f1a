// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011) of N counters: words of 32 bits in the low halves of W, which has 64 bits or several
// such lanes; `multiply` is the product of the low halves, and what is above a word's 32 bits in c is never looked at.
template <int N, typename W, typename Multiply>
inline void philox(W (&c)[4][N], uint64_t seed, Multiply multiply) {
    seed ^= 0x676E6F6C64616568u;  // other generators of these words, some on GPUs, take the same seeds for their keys
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        for (int i = 0; i < N; ++i) {
            const W p0 = multiply(c[0][i], W{} + 0xD2511F53u), p1 = multiply(c[2][i], W{} + 0xCD9E8D57u);
            c[0][i] = (p1 >> 32) ^ c[1][i] ^ (W{} + k0);
            c[1][i] = p1;
            c[2][i] = (p0 >> 32) ^ c[3][i] ^ (W{} + k1);
            c[3][i] = p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}
