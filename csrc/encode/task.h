// From rows of a layer to codes of two kinds: rotated codes in tiles.h; here those of blocks (previews/encode.py).
//
// One pass that takes the centre off, turns a block of rows into another basis in float32, and writes codes, scales and what they lose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernels.h"

namespace headlong {

struct EncodeGroup {
    int64_t start, stop;
    double unit;    // what rounding the rotated coordinates loses at most, over the length of the row
    int64_t place;  // of its codes in a row of them; -1: there are none
};

constexpr size_t kMostGroups = 64;

// What is written, per class but for the codes; padded to whole blocks.
struct EncodeResult {
    uint8_t* codes;          // [blocks][words][64][4]
    float* scale;            // [coded group]
    float *lost, *rounded;   // [group]: ‖what codes leave‖; what rounding adds to it
    float* size;             // ‖codes‖
    float *base, *length;    // bias + <row - centre, mean>; ‖row - centre‖
    uint8_t* uncoded;
};

// What is read, and the rules; `back` [dim][dim]: a rotated row is (row - centre) back, of which the first `columns` are wanted.
struct EncodeTask {
    const void* weight = nullptr;
    Kind kind = Kind::f32;
    const float *bias = nullptr, *back = nullptr;
    const double *centre = nullptr, *mean = nullptr;
    int64_t vocab = 0, dim = 0, columns = 0;
    std::vector<EncodeGroup> groups;
    EncodeResult to{};
    int64_t words = 0;  // 32-bit words of a class's codes
    double largest = 0, largest_length = 0, largest_base = 0, underflown = 0;  // beyond the first three, a row is not coded
};

struct EncodeKernels {
    const char* isa;
    int lanes;
    // out[j] = w[j] - centre[j]; base = <w - centre, mean>, square = ‖w - centre‖^2, both in float64.
    void (*narrow)(const void* row, Kind kind, const double* centre, const double* mean, int64_t dim, float* out, double* base,
                   double* square);
    // out[r][c] = <row r, column c>, r < 64, kTileChunk coordinates added up at once. `packed`: panels of 3 vectors of columns.
    void (*rotate)(const float* rows, int64_t stride, int64_t dim, const float* packed, int64_t columns, float* out, int64_t out_stride);
    bool (*within)(const float* values, int64_t n, float limit);  // false where one is NaN
    float (*square)(const float* values, int64_t n);
    // Codes values[0 .. n) and takes scale * code from them; size >= ‖scale * code‖. `work` holds n numbers.
    void (*code)(float* values, int64_t n, float* work, uint8_t* codes, float* scale, float* size);
};

const EncodeKernels* portable_encoder();
const EncodeKernels* generic_encoder();
const EncodeKernels* neon_encoder();
const EncodeKernels* avx2_encoder();
const EncodeKernels* avx512_encoder();
const EncodeKernels* encoder_for(const char* isa);

void encode(const EncodeTask& task, int threads, const char* isa);

constexpr int kSumLanes = 16;  // sums of one row: see encode/kernels.inl

template <typename S>
inline S folded(S* lane) {
    for (int i = 0; i < 8; ++i) lane[i] += lane[i + 8];
    for (int i = 0; i < 4; ++i) lane[i] += lane[i + 4];
    return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

}  // namespace headlong
