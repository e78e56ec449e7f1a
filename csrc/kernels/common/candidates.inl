// Radii, the largest estimate, and the classes whose ends reach a threshold.

float radius_of(const float* norms, const float* fixed, float term, int64_t n, float* out) {
    F most = F{};
    for (int64_t i = 0; i < n; i += LANES) {
        F sum = splat(0x1p-100f) + load(norms + i) * term;
        if (fixed != nullptr) sum += load(fixed + i);
        store(out + i, sum);
        most = vmax(sum, most);
    }
    float top = 0;
    for (int i = 0; i < LANES; ++i) top = most[i] > top ? most[i] : top;
    return top;
}

// Bytes as integers, lane by lane. Compilers take a __builtin_convertvector of bytes apart.
inline I widened(const uint8_t* bytes) {
    I out;
#ifdef WIDEN_BYTES
    auto wide = WIDEN_BYTES(bytes);
    std::memcpy(&out, &wide, sizeof out);
#else
    for (int i = 0; i < LANES; ++i) out[i] = bytes[i];
#endif
    return out;
}

// The largest of a pass in which `take` gives what an estimate counts for; n a multiple of 64. Four maxima side by side: each
// waits for its last comparison.
template <typename Take>
inline float largest_taken(const float* est, int64_t n, bool* finite, Take take) {
    constexpr int kSide = 4;
    F best[kSide] = {splat(-kInfinity), splat(-kInfinity), splat(-kInfinity), splat(-kInfinity)};
    I good = bits(F{}) == bits(F{});
    for (int64_t i = 0; i < n; i += kSide * LANES)
        for (int s = 0; s < kSide; ++s) {
            F v = load(est + i + s * LANES);
            good &= (v > splat(-1e30f)) & (v < splat(1e30f));  // beyond, float32 intervals would overflow
            best[s] = vmax(take(i + s * LANES, v), best[s]);
        }
    const F all = vmax(vmax(best[0], best[1]), vmax(best[2], best[3]));
    float top = -kInfinity;
    for (int i = 0; i < LANES; ++i) {
        top = all[i] > top ? all[i] : top;
        if (good[i] == 0) *finite = false;
    }
    return top;
}

float largest_of(float* est, const uint8_t* mask, int64_t n, bool* finite) {
    if (mask == nullptr) return largest_taken(est, n, finite, [](int64_t, F v) { return v; });
    return largest_taken(est, n, finite, [=](int64_t i, F v) {
        const F taken = pick(widened(mask + i) != 0, v, splat(-kInfinity));
        store(est + i, taken);
        return taken;
    });
}

inline int64_t lower_above_of(const float* est, const float* rad, int64_t n, float floor, float* out) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i += LANES) {
        F low = load(est + i) - load(rad + i);
        I mask = low > splat(floor);
        if (!any(mask)) continue;
        for (int j = 0; j < LANES; ++j)
            if (mask[j]) out[count++] = low[j];
    }
    return count;
}

inline int64_t candidates_of(const float* est, const float* rad, int64_t n, float tau, int32_t first, int32_t* ids, float* kept,
                     float* upper) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i += LANES) {
        F e = load(est + i), high = e + load(rad + i);
        I mask = high >= splat(tau);
        if (!any(mask)) continue;
        for (int j = 0; j < LANES; ++j) {
            if (!mask[j]) continue;
            ids[count] = first + static_cast<int32_t>(i) + j;
            kept[count] = e[j];
            upper[count++] = high[j];
        }
    }
    return count;
}
