// Looks at sixteen neighbours at once, and at single classes: what the search over blocks reads. See encode/blocks/boxes.py.
//
// Kernels take plain pointers and never allocate; one translation unit per instruction set, as in kernels/.
#pragma once

#include <cstdint>

namespace headlong {

constexpr int kNeighbours = 16;  // classes of a block, blocks of a larger one, ...
constexpr int kMostTails = 16;   // lengths of a record

// Sixteen neighbours, all of one record's bytes together:
//     int8 codes [count][16], uint8 lengths [tails][16], float32 scale [16], unit [16], base [16]
// and one class by itself:
//     int8 codes [count], uint8 lengths [tails], float32 scale, unit
struct RecordShape {
    int64_t count = 0, tails = 0;
    int64_t group_bytes() const { return (count + tails + 12) * kNeighbours; }
    int64_t class_bytes() const { return count + tails + 8; }
};

// The query's side of a record: its coordinates, the lengths of its segments (rounded up), and what every bound gets on top.
struct LookQuery {
    const float *x, *lengths;
    float add, slack;
};

// Classes that reach a threshold, side by side: their places, estimates and upper ends.
struct OpenClasses {
    int32_t* places;
    float *est, *upper;
};

// Blocks that one query opens, those with the highest bounds first: records [groups] of `shape`, bounds of their nodes, and which of
// their classes may be answered (null: all).
struct BlockList {
    const uint8_t* records = nullptr;
    RecordShape shape;
    const float* bounds = nullptr;
    const uint16_t* there = nullptr;
    const uint8_t* closer = nullptr;  // records of single classes, of so many bytes, that will be needed
    int64_t closer_bytes = 0;
    const int32_t* groups = nullptr;
    int64_t count = 0, known = 0;     // to be opened; and to be asked for before they are
};

// How many blocks of a list were passed, and opened; the classes that were found in them.
struct BlocksOpened {
    int64_t passed = 0, opened = 0, found = 0;
};

struct Looks {
    // est[c] = base[c] + scale[c] <codes c, x> + add;  upper[c] = est[c] + unit[c] <lengths c, lengths> + slack.
    // Returns a bit for every neighbour whose upper end reaches tau.
    uint32_t (*sixteen)(const uint8_t* record, const RecordShape& shape, const LookQuery& query, float tau, float* est, float* upper);
    // The same of one class on top of `est`, which it had from before; its upper end is returned.
    float (*closer)(const uint8_t* record, const RecordShape& shape, const LookQuery& query, float* est);
    // out[c] = sum_j x[j] codes[j][c] for c < n, n a multiple of 16; codes in tiles [n / kSpread][rows][kSpread], and behind these
    // tiles of 16 columns: what is read in one go is read faster from memory than strips of rows are.
    void (*spread)(const int8_t* codes, int64_t rows, int64_t n, const float* x, float* out);
    // Which of the numbers x [n] reach `least`, rising; returns how many. n is a multiple of 16; `out` has room for sixteen more.
    int64_t (*listed)(const float* x, int64_t n, float least, int32_t* out);
    // The same of the `wanted` <= 16 largest that reach it, the first ones among equals; `work` has room as `out` has.
    int64_t (*largest)(const float* x, int64_t n, int64_t wanted, float least, float* work, int32_t* out);
    // The classes from place `first` on that have a bit in `open`, at the front of `to`, which has room for sixteen: zeros behind them.
    // Returns how many. (A query opens a hundred blocks with one or two such classes in each: a branch for each would be guessed wrong.)
    int64_t (*taken)(uint32_t open, int32_t first, const float* est, const float* upper, const OpenClasses& to);
    // `sixteen`, then `taken`, of blocks whose bounds reach tau, until `most` classes were found; `to` has room for sixteen more.
    BlocksOpened (*opened)(const BlockList& list, const LookQuery& query, float tau, int64_t most, const OpenClasses& to);
    // `closer` of those of `count` classes whose upper end reaches tau, in place; returns how many.
    int64_t (*closer_of)(const uint8_t* records, const RecordShape& shape, const LookQuery& query, float tau, const OpenClasses& of, int64_t count);
};

constexpr int64_t kSpread = 4 * kNeighbours;  // columns of a tile; native/readers.py makes them

}  // namespace headlong
