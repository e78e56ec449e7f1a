// Codes, block by block.
#include <algorithm>
#include <numeric>

#include "native/cases.h"

namespace headlong {

void Check::note(const char* kernel, bool right, const std::vector<uint8_t>& wrote) {
    ++comparisons_;
    for (const uint8_t byte : wrote) hash_ = (hash_ ^ byte) * 0x100000001B3u;
    if (!right && good()) fault_ = std::string(kernel) + " of " + level_.isa + " differs in the round seeded with " + std::to_string(seed_);
}

namespace {

// The high plane of a query goes to +-127, its low plane to -128.
std::vector<int8_t> planes_of(Noise& noise, int64_t quads) {
    std::vector<int8_t> planes(quads * 8);
    const bool extreme = noise.below(4) == 0;
    for (int64_t i = 0; i < quads * 8; ++i) {
        const bool low = i % 8 >= 4;
        planes[i] = static_cast<int8_t>(extreme ? (noise.below(2) == 0 ? 127 : low ? -128 : -127) : noise.below(255) - 127);
    }
    return planes;
}

std::vector<int32_t> offsets_of(const std::vector<int8_t>& planes, int64_t words, int n) {
    std::vector<int32_t> offset(2 * n, 0);
    for (int q = 0; q < n; ++q)
        for (int64_t i = 0; i < words * 8; ++i) offset[2 * q + (i % 8 >= 4)] += 128 * planes[q * words * 8 + i];
    return offset;
}

void scan(Check& check) {
    Noise& noise = check.noise();
    const int n = 1 + static_cast<int>(noise.below(9));
    const int64_t words = 1 + noise.below(noise.below(8) == 0 ? 258 : 40);
    const bool extreme = noise.below(4) == 0, fresh = noise.below(2) == 0;
    auto block = noise.bytes<uint8_t>(words * 256, 0, 255);
    if (extreme)
        for (uint8_t& byte : block) byte = byte < 128 ? 0 : 255;
    const std::vector<int8_t> planes = planes_of(noise, words * n);
    const std::vector<int32_t> offset = offsets_of(planes, words, n);
    std::vector<int32_t> sums(kBlock, 0);
    for (int64_t i = 0; i < words * 256; ++i) sums[i / 4 % kBlock] += block[i];
    const std::vector<float> step = noise.floats(n, 0, 1e-3f), scale = noise.floats(kBlock, 0, 0.1f), base = noise.floats(kBlock, -4, 4);
    const std::vector<float> add = noise.floats(n, -1, 1), before = noise.floats(n * 70, -9, 9);
    check.same("scan_u8", [&](const Kernels& k, std::vector<uint8_t>& out) {
        std::vector<float> est = before;
        k.scan_u8(block.data(), words, sums.data(), planes.data(), offset.data(), step.data(), scale.data(), fresh ? base.data() : nullptr,
                  fresh ? add.data() : add.data(), n, est.data(), 70);
        put(out, est);
    });
}

// Sums below 2^24, which float32 holds whatever the order; or of each plane the largest that there are, which are rounded once.
void whole(Check& check, bool largest) {
    Noise& noise = check.noise();
    const int n = 1 + static_cast<int>(noise.below(9));
    const int64_t words = 1 + noise.below(60);
    const int most = static_cast<int>(60 / words > 0 ? 60 / words : 1);
    auto block = noise.bytes<uint8_t>(words * 256, 0, 255);
    auto planes = noise.bytes<int8_t>(words * n * 8, -most, most);
    if (largest) {
        std::fill(block.begin(), block.end(), static_cast<uint8_t>(noise.below(2) * 255));
        const int8_t high = noise.below(2) == 0 ? 127 : -127, low = noise.below(2) == 0 ? 127 : -128;
        for (size_t i = 0; i < planes.size(); ++i) planes[i] = i % 8 >= 4 ? low : high;
    }
    const std::vector<int32_t> offset = offsets_of(planes, words, n);
    std::vector<int32_t> sums(kBlock, 0);
    for (int64_t i = 0; i < words * 256; ++i) sums[i / 4 % kBlock] += block[i];
    const std::vector<float> one(kBlock, 1.f), base(kBlock, 0.f), add(n, 0.f);
    check.exact(largest ? "scan_u8 of the largest numbers" : "scan_u8 of whole numbers", [&](const Kernels& k, std::vector<uint8_t>& out) {
        std::vector<float> est(n * kBlock);
        k.scan_u8(block.data(), words, sums.data(), planes.data(), offset.data(), one.data(), one.data(), base.data(), add.data(), n,
                  est.data(), kBlock);
        put(out, est);
    });
}

}  // namespace

void scans(Check& check) {
    for (int i = 0; i < 8; ++i) scan(check), whole(check, false), whole(check, true);
}

}  // namespace headlong
