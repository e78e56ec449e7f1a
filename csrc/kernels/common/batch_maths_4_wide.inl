// What every LaneOps<4> of kernels/common/batch.inl has in common. Included after kernels/common/all.inl with LANES 4, where
// lane_bits(mask) gives a bit for each lane that is not 0.

struct LaneMaths {
    typedef float F __attribute__((vector_size(16)));
    typedef int32_t I __attribute__((vector_size(16)));

    static F least(F a, F b) { return a < b ? a : b; }
    static F most(F a, F b) { return a > b ? a : b; }
    static uint32_t not_below(F a, F b) { return lane_bits(~(a < b)); }
    static uint32_t negative(F a) { return lane_bits(a < F{}); }
    static float sum(F a) {
        float s = 0;
        for (int i = 0; i < 4; ++i) s += a[i];
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
