// The scan: one pass over the codes of all classes, for some queries at a time.
//
// Classes stand in tiles of 64, each one run of bytes: the codes of every segment, then a scale for each segment and class (float32), an
// error norm (bfloat16, rounded up), and the bases (float32). A segment of n coordinates and b bits has ceil(n / 32) groups of b
// words of 64 x 4 bytes: four for the upper half byte of every code if b has one, two for two bits, one for one bit; quad g of the
// eight quads of a group is in bits 4 (g % 2), 2 (g % 4), g of the bytes of word g / 2, g / 4, 0. Codes of 8 bits are plain bytes.
// The code u of b bits means the odd integer 2 u - (2^b - 1).
#pragma once

#include <cstdint>

namespace headlong {

constexpr int64_t kTile = 64;        // classes of a tile
constexpr int kMostSegments = 16;
constexpr int kMostPasses = 2 * kMostSegments;
constexpr int kLanes = 8;           // queries that are read side by side, at most

struct TileSegment {
    int bits;
    int64_t groups;  // of 32 coordinates
    int64_t at;      // its codes in a tile, in bytes
};

struct TileLayout {
    int segments = 0;
    TileSegment segment[kMostSegments];
    int64_t scales = 0, errors = 0, bases = 0, bytes = 0;  // where they are in a tile, and how long it is

    // Counts the bytes of a tile; `bits` and `coordinates` of each segment.
    void set(int count, const int* bits, const int64_t* coordinates) {
        segments = count;
        int64_t at = 0;
        for (int s = 0; s < count; ++s) {
            segment[s] = {bits[s], (coordinates[s] + 31) / 32, at};
            at += segment[s].groups * bits[s] * kTile * 4;
        }
        scales = at;
        errors = scales + count * kTile * 4;
        bases = errors + count * kTile * 2;
        bytes = bases + kTile * 4;
    }
};

// A segment's codes times one int8 plane of some queries side by side: est += scale * step * sum_j code_j x_j.
struct ScanPass {
    int segment;
    const int8_t* x;       // [8 groups][lanes][4]
    const int32_t* sum;    // [lanes]: of x
    const float* step;     // [lanes]
};

// How far off the estimates of one query are: a sum over segments of error * norm + scale * loss, or the root of such a sum of squares.
struct ScanRadius {
    bool squared = true;
    float error[kMostSegments], scale[kMostSegments];
    float constant = 0;  // added to every radius: roundings
};

struct ScanKernels {
    // The estimates [lanes][64] of a tile; lanes is 1, 2, 4 or 8.
    void (*estimate)(const uint8_t* tile, const TileLayout& layout, const ScanPass* passes, int count, int lanes, float* est);
    // Which classes of a tile have an upper end, estimate + radius, of `least` or more, one bit each. upper: those ends, where any bit is set.
    uint64_t (*reach)(const float* est, const uint8_t* tile, const TileLayout& layout, const ScanRadius& radius, float least, float* upper);
    // Of the classes with an estimate below `edge`, mass = exp(beta * (est - edge)) and gap = exp(beta * (est + radius - edge)) - mass; zeros for
    // the others, for those that `keep` (one bit each) leaves out. sums: of both. Returns which are at `edge` or above.
    uint64_t (*masses)(const float* est, const uint8_t* tile, const TileLayout& layout, const ScanRadius& radius, float beta, float edge, uint64_t keep,
                       float* mass, float* gap, float sums[2]);
    // Columns first .. stop - 1, multiples of 32, of x [n][width] = d [n][dim] @ rotation [dim][width]: sums of 8 products in float32 are summed in float64.
    void (*rotate)(const float* rotation, int64_t dim, int64_t width, int64_t first, int64_t stop, const float* d, int64_t n, float* x);
};

const ScanKernels* portable_scan();
const ScanKernels* avx2_scan();
const ScanKernels* avxvnni_scan();
const ScanKernels* avx512_scan();
const ScanKernels* neon_scan();
const ScanKernels* dotprod_scan();
const ScanKernels* scan_for(const char* level);  // kernels/level_tables.cpp

}  // namespace headlong
