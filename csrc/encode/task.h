// From rows of a layer to codes: one pass that takes the centre off, turns a block of rows into another basis in float32, and
// writes codes, scales and what they lose. See previews/encode.py, whose NumPy twin says the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernels.h"

namespace headlong {

// How the step of a plane is found: the row's largest entry over what 8 bits reach; the best for a Gaussian of the row's
// size; that whose cells hold every entry; that which cuts the cells of the plane before into 2^bits.
enum class Step : int { absmax, gaussian, upper, lower };

struct EncodePlane {
    int bits;
    Step step;
    int64_t place;  // of its bytes in the level's row
};

struct EncodeGroup {
    int64_t start, stop;
    double unit;  // what rounding the rotated coordinates loses at most, over the length of the row
    std::vector<EncodePlane> planes;
    int cover = -1;  // of a coarse group: the fine one that it is a part of
};

constexpr size_t kMostGroups = 64;

// What is written, per class but for the codes; padded to whole blocks where not said otherwise.
struct EncodeResult {
    uint8_t *codes, *rest;       // [blocks][words][64][4]; [vocab][bytes]
    float *scale, *rest_scale;   // [plane]
    float *lost, *rounded;       // [group]: ‖what the coarse planes leave‖; what rounding adds to it
    float* rest_lost;            // [group]: after the fine planes, rounding included
    float *size, *rest_size;     // ‖codes‖ of the coarse planes, of all planes
    float *base, *length;        // bias + <row - centre, mean>; ‖row - centre‖
    uint8_t* uncoded;
    double* grams = nullptr;     // group after group E^T E [n][n], E what the coarse planes leave of all rows; null: not wanted
};

// One way to code the rotated rows; several share the rotation.
struct EncodeView {
    std::vector<EncodeGroup> coarse, fine;
    EncodeResult to;
    int64_t words = 0, bytes = 0;  // 32-bit words of a class's coarse codes, bytes of its fine ones
};

// What is read, and the rules; `back` [dim][dim]: a rotated row is (row - centre) back, of which the first `columns` are wanted.
struct EncodeTask {
    const void* weight = nullptr;
    Kind kind = Kind::f32;
    const float *bias = nullptr, *back = nullptr;
    const double *centre = nullptr, *mean = nullptr;
    int64_t vocab = 0, dim = 0, columns = 0;
    std::vector<EncodeView> views;
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
    // sums[i][j] += <column i, column j> over 64 rows, for i < n and j from i's on, as it comes.
    void (*gram)(const float* rows, int64_t stride, int64_t n, float* sums, int64_t sums_stride);
    // Codes values[0 .. n), as bytes, and takes scale * code from them; size >= ‖scale * code‖. `before`: the scale of the
    // plane before. `work` holds n numbers.
    void (*plane)(float* values, int64_t n, int bits, Step step, float before, float* work, uint8_t* codes, float* scale,
                  float* size);
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

// Bytes of n codes in a row: whole words below 8 bits.
inline int64_t plane_bytes(int64_t n, int bits) { return bits == 8 ? n : (n * bits + 31) / 32 * 4; }

}  // namespace headlong
