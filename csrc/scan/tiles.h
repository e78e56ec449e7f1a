// The scan: one pass over the rotated codes of all classes, for some queries at a time. A file for each instruction set.
//
// Classes stand in tiles of 64, each one run of bytes: the codes of every segment, then in float32 a scale for each segment and class, the
// bases, the share of the tile's radius that no radius of a class exceeds, and of each segment an error norm and a scale of the tile, of
// which no class has more than its share (filled up to 64 bytes). A segment of n coordinates and b bits has ceil(n / 32) groups of b
// words of 64 x 4 bytes: four for the upper half byte of every code if b has one, two for two bits, one for one bit; quad g of the
// eight quads of a group is in bits 4 (g % 2), 2 (g % 4), g of the bytes of word g / 2, g / 4, 0. Codes of 8 bits are plain bytes.
// The code u of b bits means the odd integer 2 u - (2^b - 1).
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace headlong {

constexpr int64_t kTile = 64;        // classes of a tile
constexpr int kMostSegments = 16;
constexpr float kLeastShare = 0.25f;  // of a tile's radius that a class has at the least
constexpr int kMostPasses = 2 * kMostSegments;
constexpr int64_t kPanel = 32;       // columns of a rotation that lie side by side
constexpr int kLanes = 8;           // queries that are read side by side, at most
constexpr int kMostLanes = 16;           // numbers of as many queries, filled up to the widest register

// work(place) for every bit that is set, of classes of a tile.
template <typename Work>
void each_bit(uint64_t bits, const Work& work) {
    for (; bits != 0; bits &= bits - 1) work(__builtin_ctzll(bits));
}

struct TileSegment {
    int bits;
    int64_t groups;  // of 32 coordinates
    int64_t at;      // its codes in a tile, in bytes
};

struct TileLayout {
    int segments = 0;
    TileSegment segment[kMostSegments];
    int64_t scales = 0, bases = 0, shares = 0, largest = 0, bytes = 0;  // where they are in a tile, and how long it is

    // Counts the bytes of a tile; `bits` and `coordinates` of each segment.
    void set(int count, const int* bits, const int64_t* coordinates) {
        segments = count;
        int64_t at = 0;
        for (int s = 0; s < count; ++s) {
            segment[s] = {bits[s], (coordinates[s] + 31) / 32, at};
            at += segment[s].groups * bits[s] * kTile * 4;
        }
        scales = at;
        bases = scales + count * kTile * 4;
        shares = bases + kTile * 4;
        largest = shares + kTile * 4;
        bytes = largest + (count * 8 + 63) / 64 * 64;
    }
};

// A segment's codes times one int8 plane of some queries side by side: est += scale * step * sum_j code_j x_j.
struct ScanPass {
    int segment;
    const int8_t* x;       // [8 groups][lanes][4]
    const int32_t* sum;    // [lanes]: of x
    const float* step;     // [lanes]
};

// How far off the estimates of a tile are for queries side by side, query after query (zeros where there is none): of the tile's
// numbers a sum over segments of error * norm + scale * loss, or the root of such a sum of squares. Each class has its share of that, and the
// constant, which is roundings.
//
// Neither squares nor products of these may leave float32: the tile's numbers are taken times `unit`, a power of two that brings the layer's
// largest near one, a query's come divided by a power of two of its own, and `back` undoes both.
struct ScanRadii {
    bool squared = true;
    float unit = 1;
    float error[kMostSegments][kMostLanes] = {}, scale[kMostSegments][kMostLanes] = {}, constant[kMostLanes] = {}, back[kMostLanes] = {};
};

// What a mass is at least, of a class that is there: exp(kFloor) times that of a class at the edge. Below, an exponential would become 0, and
// so would every bound that is a multiple of it.
constexpr float kFloor = -84.f;
// The largest exponent of what a mass may be off: beyond, nothing is said. A class at the floor is still far below one at the edge.
constexpr float kMostExponent = 60.f;

struct ScanKernels {
    // The estimates [lanes][64] of a tile; lanes is 1, 2, 4 or 8. next: from this tile to the one that follows, which is
    // asked for ahead; 0 where there is none, or a cache has it.
    void (*estimate)(const uint8_t* tile, const TileLayout& layout, const ScanPass* passes, int count, int lanes, int64_t next, float* est);
    // The tile's radii [kMostLanes], query after query; and, where they are not null, [kMostLanes] each: of a mass, a class with a share s may
    // be off by part * s * (1 + bend * s). exp(s h) - 1 <= s h + s^2 (exp(h) - 1 - h), h = beta * (radius + what the constant is to the least
    // share); infinite where h is no less than kMostExponent.
    void (*radii)(const uint8_t* tile, const TileLayout& layout, const ScanRadii& all, float beta, float* radii, float* part, float* bend);
    // Which classes of a tile have an upper end, estimate + share * radius, of `least` or more, one bit each. upper: those ends, where any bit is set.
    uint64_t (*reach)(const float* est, const float* shares, float radius, float least, float* upper);
    // mass = exp(max(kFloor, beta * (est - edge))) of the classes with an estimate below `edge`; zeros for the others, and for those that `keep`
    // (one bit each) leaves out; and share * (1 + bend * share) * mass. sums: of both. Returns which are at `edge` or above.
    uint64_t (*masses)(const float* est, const float* shares, float beta, float edge, float bend, uint64_t keep, float* mass, float* shared,
                       float sums[2]);
    // What an entropy asks of masses and shares that `masses` made, with y = beta * (est - edge) of each class: share *= lift - y.
    // sums: of mass * y, of -y times the shares that came, and of those that are left.
    void (*surprisals)(const float* est, float beta, float edge, float lift, const float* mass, float* shared, float sums[3]);
    // link(est + add), -inf where est is. What float32 may be off is the caller's to add to radii.
    void (*linked)(const float* est, float add, Link link, float* out);
    // Columns first .. stop - 1, multiples of kPanel, of x [n][width] = d [n][dim] @ rotation, which lies [panels][dim][kPanel]: sums of 8 products in
    // float32 are summed in float64.
    void (*rotate)(const float* rotation, int64_t dim, int64_t width, int64_t first, int64_t stop, const float* d, int64_t n, float* x);
};

}  // namespace headlong
