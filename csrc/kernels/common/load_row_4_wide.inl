// Four entries of a row as it is stored, on the compiler's vector types. Included inside an anonymous namespace.

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
