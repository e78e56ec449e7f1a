// An entry as it is stored, float32, float16 or bfloat16, and four on the compiler's vector types. Included inside an anonymous namespace.

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

template <Kind K>
inline auto four_entries(const void* row) {
    typedef float F4 __attribute__((vector_size(16)));
    typedef int32_t I4 __attribute__((vector_size(16)));
    typedef uint16_t H4 __attribute__((vector_size(8)));
    F4 out;
    if (K == Kind::f32) {
        std::memcpy(&out, row, sizeof out);
        return out;
    }
    H4 stored;
    std::memcpy(&stored, row, sizeof stored);
    const I4 half = __builtin_convertvector(stored, I4);
    I4 raw = half << 16;
    if (K == Kind::f16) {
        // Exponent and mantissa moved into place stand for 2^-112 times the number, subnormals too; infinity and what is none
        // keep all bits of their exponent.
        const I4 size = (half & 0x7FFF) << 13, special = (size >= 0x0F800000) & 0x7F800000;
        std::memcpy(&out, &size, sizeof out);
        out *= 0x1p112f;
        std::memcpy(&raw, &out, sizeof raw);
        raw |= special | (half & 0x8000) << 16;
    }
    std::memcpy(&out, &raw, sizeof out);
    return out;
}
