// What looks.inl asks of instruction sets that have nothing of their own for it: number by number, without a branch where one would be
// guessed wrong. OWN_FRONT says that `front` is there.

#ifndef OWN_FRONT
// Those of sixteen numbers that have a bit in `open`, at the front, zeros behind them.
template <typename T>
inline void front(uint32_t open, const T* from, T* to) {
    T found[kNeighbours + 1] = {};
    int at = 0;
    for (int c = 0; c < kNeighbours; ++c) {
        found[at] = from[c];
        at += static_cast<int>(open >> c & 1);
    }
    found[at] = T{};
    std::memcpy(to, found, kNeighbours * sizeof(T));
}
#endif

// Products of fewer than sixteen codes with x.
template <typename T>
inline F16 short_product(const T* codes, const float* x, int64_t count) {
    float out[kNeighbours] = {};
    for (int64_t j = 0; j < count; ++j) out[j] = static_cast<float>(codes[j]) * x[j];
    return got<F16>(out);
}
