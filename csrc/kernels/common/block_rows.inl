// Rows in blocks of codes and scales as the float32 numbers that ggml's own dequantisation gives: every product below is exact, and a
// difference is rounded once, with or without fused arithmetic.

inline float half_at(const uint8_t* from) {
    uint16_t bits;
    std::memcpy(&bits, from, sizeof bits);
    return one_float(&bits, Kind::f16, 0);
}

typedef uint64_t Bits __attribute__((vector_size(16)));

inline Bits every_byte(uint8_t byte) { return Bits{} + 0x0101010101010101u * byte; }
inline Bits sixteen_at(const uint8_t* from) {
    Bits bits;
    std::memcpy(&bits, from, sizeof bits);
    return bits;
}

// Sixteen codes, less `zero` each, as numbers: step * code - start.
inline void put_sixteen(Bits codes, int zero, float step, float start, float* out) {
    uint8_t bytes[16];
    std::memcpy(bytes, &codes, sizeof bytes);
    for (int j = 0; j < 16; j += LANES)
        store(out + j, __builtin_convertvector(widened(bytes + j) - zero, F) * splat(step) - splat(start));
}

inline void block_q8_0(const uint8_t* block, float* out) {
    const float d = half_at(block);
    for (int run = 0; run < 32; run += 16) put_sixteen(sixteen_at(block + 2 + run) ^ every_byte(128), 128, d, 0, out + run);
}

inline void block_q4_0(const uint8_t* block, float* out) {
    const float d = half_at(block);
    const Bits codes = sixteen_at(block + 2);
    put_sixteen(codes & every_byte(15), 8, d, 0, out);
    put_sixteen(codes >> 4 & every_byte(15), 8, d, 0, out + 16);
}

// Eight scales and eight minima of six bits each in twelve bytes, then codes of four bits, and above them a fifth where `fifth` is not null.
inline void block_with_minima(const uint8_t* block, const uint8_t* fifth, const uint8_t* codes, float* out) {
    const float d = half_at(block), least = half_at(block + 2);
    const uint8_t* packed = block + 4;
    for (int part = 0; part < 8; ++part) {
        const int low = part & 3, scale = part < 4 ? packed[low] & 63 : (packed[low + 8] & 15) | packed[low] >> 6 << 4;
        const int minimum = part < 4 ? packed[low + 4] & 63 : packed[low + 8] >> 4 | packed[low + 4] >> 6 << 4;
        for (int run = 0; run < 32; run += 16) {
            Bits code = sixteen_at(codes + part / 2 * 32 + run) >> 4 * (part & 1) & every_byte(15);
            if (fifth != nullptr) code |= (sixteen_at(fifth + run) >> part & every_byte(1)) << 4;
            put_sixteen(code, 0, d * static_cast<float>(scale), least * static_cast<float>(minimum), out + 32 * part + run);
        }
    }
}

inline void block_q6_k(const uint8_t* block, float* out) {
    const float d = half_at(block + 208);
    for (int half = 0; half < 2; ++half) {
        const uint8_t *low = block + 64 * half, *high = block + 128 + 32 * half, *scales = block + 192 + 8 * half;
        for (int part = 0; part < 4; ++part)
            for (int run = 0; run < 2; ++run) {
                const Bits lower = sixteen_at(low + 32 * (part & 1) + 16 * run) >> 4 * (part / 2) & every_byte(15);
                const Bits upper = (sixteen_at(high + 16 * run) >> 2 * part & every_byte(3)) << 4;
                const float step = d * static_cast<float>(static_cast<int8_t>(scales[2 * part + run]));
                put_sixteen(lower | upper, 32, step, 0, out + 128 * half + 32 * part + 16 * run);
            }
    }
}

void row_floats_of(const void* row, Kind kind, int64_t dim, float* out) {
    const uint8_t* from = static_cast<const uint8_t*>(row);
    if (kind == Kind::scaled) {
        float scale;
        std::memcpy(&scale, from, sizeof scale);
        for (int64_t j = 0; j < dim; ++j) out[j] = static_cast<float>(static_cast<int8_t>(from[4 + j])) * scale;
        return;
    }
    const BlockSize size = block_size(kind);
    for (int64_t j = 0; j < dim; j += size.weights, from += size.bytes) {
        if (kind == Kind::q8_0) block_q8_0(from, out + j);
        else if (kind == Kind::q4_0) block_q4_0(from, out + j);
        else if (kind == Kind::q4_k) block_with_minima(from, nullptr, from + 16, out + j);
        else if (kind == Kind::q5_k) block_with_minima(from, from + 16, from + 48, out + j);
        else block_q6_k(from, out + j);
    }
}
