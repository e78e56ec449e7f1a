// What every LaneOps<8> of kernels/common/batch.inl has in common.

struct LaneMaths {
    typedef float F __attribute__((vector_size(32)));
    typedef int32_t I __attribute__((vector_size(32)));

    static F least(F a, F b) { return (F)_mm256_min_ps((__m256)a, (__m256)b); }
    static F most(F a, F b) { return (F)_mm256_max_ps((__m256)a, (__m256)b); }
    static uint32_t not_below(F a, F b) {
        return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_NLT_UQ)));
    }
    static uint32_t negative(F a) {
        return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps((__m256)a, _mm256_setzero_ps(), _CMP_LT_OQ)));
    }
    static float sum(F a) {
        float s = 0;
        for (int i = 0; i < 8; ++i) s += a[i];
        return s;
    }
    static F power(F y) {  // no number stays none
        const F x = least(F{} + 126.f, most(F{} - 100.f, y)), shifted = x + 12582912.f, f = x - (shifted - 12582912.f);
        const F p = ((f * 0.0551716946f + 0.242611378f) * f + 0.693261027f) * f + 0.999928057f;
        I raw, octave;
        std::memcpy(&raw, &p, sizeof raw);
        std::memcpy(&octave, &shifted, sizeof octave);
        raw += octave << 23;  // the integer sits in the low mantissa bits
        F out;
        std::memcpy(&out, &raw, sizeof out);
        return out;
    }
};
