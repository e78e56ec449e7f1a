// An entry as it is stored: float32, float16 or bfloat16. Included inside an anonymous namespace.

inline float one_float(const void* row, Kind kind, int64_t j) {
    if (kind == Kind::f32) return static_cast<const float*>(row)[j];
    uint32_t h = static_cast<const uint16_t*>(row)[j];
    float out;
    if (kind == Kind::bf16) {
        h <<= 16;
        std::memcpy(&out, &h, 4);
        return out;
    }
    uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3FFu;
    if (exponent == 0) {
        float small = static_cast<float>(mantissa) * 5.9604645e-8f;  // 2^-24: exact, subnormals included
        return sign ? -small : small;
    }
    uint32_t word = exponent == 31 ? 0x7F800000u | mantissa << 13 : (exponent + 112u) << 23 | mantissa << 13;
    word |= sign;
    std::memcpy(&out, &word, 4);
    return out;
}
