// What is read of a matrix before its rows: see plan.Plan. The arrays are borrowed and never changed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernels.h"

namespace headlong {

// The query's half of a summand of the radius, and which row of the slack it multiplies; see plan.Term.
enum class TermKind : int { norm, quantised, rest, peaks, one };
constexpr const char* kTermKinds[] = {"norm", "quantised", "rest", "peaks", "one"};  // in this order

struct Term {
    TermKind kind;
    int64_t start, stop;
    double factor;
    int row;
    double together = 0;  // errors of all classes are no longer than this times ‖x[start:stop]‖, as one vector; 0: not known
};

// A run of coordinates, and where its codes are: 32-bit words of each class side by side.
struct Segment {
    int64_t start, stop;
    int64_t words, first_word;
};

// One way to look at all classes: interleaved codes, or the rows of a float matrix.
struct Source {
    const uint8_t* codes = nullptr;
    std::vector<Segment> segments;
    int64_t words = 0;
    bool six_bits = false;  // three bytes for four codes
    const float* scale = nullptr;
    std::vector<int32_t> sums;  // [segment, padded] of the codes, where the kernels multiply by them alone: Kernels::summed

    const void* rows = nullptr;
    Kind kind = Kind::f32;
    int64_t width = 0;

    bool rotated = false;  // reads x = hidden @ rotation rather than the hidden vector
    const float* base = nullptr;
    std::vector<Slack> slack;
    std::vector<Term> terms;
    double bytes = 0;  // of a full pass
};
std::vector<int32_t> code_sums(const Kernels& kernels, const Source& source, int64_t padded);  // executor/code_sums.cpp

// Block b of codes, of a byte each; `room` holds one where it has to be unpacked.
inline const uint8_t* block_of(const Kernels& kernels, const Source& source, int64_t b, uint8_t* room) {
    constexpr int64_t kWord = 4 * kBlock;
    if (!source.six_bits) return source.codes + b * source.words * kWord;
    kernels.six_bits(source.codes + b * source.words / 4 * 3 * kWord, source.words, room);
    return room;
}
inline int64_t room_for_block(const Source& source) { return source.six_bits ? source.words * 4 * kBlock : 0; }

// A rotation [dim][width], kept as tiles of so many columns, each of which lies in memory without a gap: what is not in the caches is
// read faster so than as a strip of each row.
struct Rotation {
    static constexpr int64_t kTile = 128;
    std::vector<uint8_t> tiles;  // [width / kTile][dim][kTile], the last tile narrower; empty where there is no rotation
    Kind kind = Kind::f32;
    int64_t dim = 0, width = 0;

    int64_t item() const { return item_bytes(kind); }
    int64_t count() const { return (width + kTile - 1) / kTile; }
    int64_t columns(int64_t tile) const { return std::min(kTile, width - tile * kTile); }
    const uint8_t* at(int64_t tile) const { return tiles.data() + tile * kTile * dim * item(); }
    void assign(const void* matrix, Kind stored, int64_t rows, int64_t columns);
};

struct Plan {
    Rotation rotation;  // x = hidden @ rotation
    int64_t rotated_dim = 0;
    const double* centre = nullptr;  // <centre, hidden> joins every estimate
    int64_t budget = 0;              // rows that are scored instead of a proof
    double share = 0;                // of the classes beyond which a query is better read densely
    double code_product = 0;         // of an 8-bit code with both planes of a query, beside one of a row, in a batch
    Source dense, preview;           // the rows themselves, and their codes
    bool has_preview = false;
};

}  // namespace headlong
