// The scan in plain loops: the reference for the others, on any processor.
#include <cmath>
#include <cstring>

#include "kernels/levels.h"
#include "scan/tiles.h"

namespace headlong {
namespace {

#define LANES 4
#include "kernels/common/vectors.inl"
#include "scan/common.inl"

// The code of class c at coordinate j of a segment.
int code_of(const uint8_t* codes, int bits, int64_t c, int64_t j) {
    const int64_t word = kTile * 4, place = c * 4 + j % 4, quad = j / 4 % 8;
    const uint8_t* group = codes + j / 32 * bits * word + place;
    if (bits == 8) return group[quad * word];
    int code = 0;
    if (bits & 4) code = group[quad / 2 * word] >> 4 * (quad % 2) & 15, group += 4 * word;
    if (bits & 2) code = code << 2 | (group[quad / 4 * word] >> 2 * (quad % 4) & 3), group += 2 * word;
    if (bits & 1) code = code << 1 | (group[0] >> quad & 1);
    return code;
}

void estimate(const uint8_t* tile, const TileLayout& layout, const ScanPass* passes, int count, int lanes, int64_t, float* est) {
    for (int q = 0; q < lanes; ++q) std::memcpy(est + q * kTile, tile + layout.bases, kTile * 4);
    for (int p = 0; p < count; ++p) {
        const TileSegment& segment = layout.segment[passes[p].segment];
        for (int64_t c = 0; c < kTile; ++c) {
            float scale;
            std::memcpy(&scale, tile + layout.scales + (passes[p].segment * kTile + c) * 4, 4);
            int32_t sums[kLanes] = {};
            for (int64_t j = 0; j < segment.groups * 32; ++j) {
                const int code = code_of(tile + segment.at, segment.bits, c, j);
                for (int q = 0; q < lanes; ++q) sums[q] += code * passes[p].x[(j / 4 * lanes + q) * 4 + j % 4];
            }
            for (int q = 0; q < lanes; ++q) {
                const float dot = static_cast<float>(2 * sums[q] - ((1 << segment.bits) - 1) * passes[p].sum[q]);
                est[q * kTile + c] = std::fma(dot, scale * passes[p].step[q], est[q * kTile + c]);
            }
        }
    }
}

constexpr ScanKernels kScan = {estimate, radii, reach, masses, surprisals, linked, rotate};

}  // namespace

const ScanKernels* portable_scan() { return &kScan; }

}  // namespace headlong
