// A block as two halves of 32 classes, by the level's own scan_half<Bits>. Included inside the anonymous namespaces of kernels/avx2.cpp
// and kernels/avxvnni.cpp.
void scan_u8(const uint8_t* block, int64_t words, int bits, const int32_t*, const int8_t* planes, const int32_t* offset,
             const float* step, const float* scale, const float* base, const float* add, int n, float* est,
             int64_t stride) {
    const auto scan = bits == 8 ? scan_half<8> : bits == 4 ? scan_half<4> : bits == 2 ? scan_half<2> : scan_half<1>;
    for (int q = 0; q < n; ++q)
        for (int half = 0; half < 2; ++half)
            scan(block + half * 128, words, planes + q * words * (8 / bits) * 8, offset + 2 * q, step[q], scale + half * 32,
                 base == nullptr ? nullptr : base + half * 32, add[q], est + q * stride + half * 32);
}
