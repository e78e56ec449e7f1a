// Reads a layer coordinate by coordinate: AdaptiveSoftmax as published, and the race that can be trusted.
//
// adaptive/search.cpp holds the published search, adaptive/race.cpp the sound one; both read `columns`, one contiguous run of all classes
// for each coordinate. Arrays are borrowed; a reader may serve many threads.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "executor/executor.h"
#include "kernels/kernels.h"

namespace headlong {

constexpr int64_t kColumns = 16;  // coordinates of a block of the race

// What all classes share of the radii of a look, see Race in adaptive/race.cpp.
struct WidthRule {
    double shared, factor, left;  // <centre, h>; of the sure radius; ‖x[unread]‖
    double unit;                  // rounding of sums of what was read
    double by_size, fixed;        // rounding that goes with a class's size, and of every class
    double drawn = 0, population = 0;  // bernstein: blocks drawn evenly, and of how many; 0: not yet
    double by_spread = 0, by_peak = 0, by_drawn = 0;  // its allowance: of the blocks' deviation, the longest one, the size
};

// Of the classes of a look.
struct WidthArrays {
    const float *base, *size, *peak, *read, *sum, *sampled, *square;
};

struct ColumnKernels {
    const char* isa;
    // est[i] = sum_j c[j] w_ij, var[i] = sum_j d[j] w_ij^2, w_ij = group[ids[j] * 64 + i], j < m, for the classes i < 64 whose
    // block of 16 is in that mask.
    void (*moments)(const void* group, Kind kind, const int32_t* ids, const float* c, const float* d, int64_t m,
                    unsigned blocks, float* est, float* var);
    void (*block)(const float* columns, int64_t stride, const float* x, int64_t m, int64_t first, int64_t n, float* est,
                  float* square);
    // The estimates and radii of classes first .. first + n - 1, n a multiple of 64; false where one is no number below 1e30.
    bool (*widths)(const WidthRule& rule, const WidthArrays& from, int64_t first, int64_t n, float* est, float* rad);
    // The largest of n values, n a multiple of 64.
    float (*largest)(const float* values, int64_t n);
    // A bit for each of 64 values that is above its limit.
    uint64_t (*above)(const float* values, const float* limits);
};

const ColumnKernels* portable_columns();
const ColumnKernels* generic_columns();
const ColumnKernels* neon_columns();
const ColumnKernels* avx2_columns();
const ColumnKernels* avx512_columns();
const ColumnKernels* columns_for(const char* isa);  // kernels/level_tables.cpp

// The paper's settings; see Rules in engines/adaptive/published.py.
struct PublishedRules {
    double eps, delta, warm;
    bool exact;
    double arm, sum, width;
    int64_t k;
};

struct PublishedAnswer {
    std::vector<Scored> best;  // z holds link(logit), or its estimate
    double lse = 0;
    int64_t pulls = 0, full = 0, rows = 0;
    double bytes = 0;  // what was read, again at every growth of the prefix
};

// How a race may stop; see engines/adaptive/race.py.
struct RaceRules {
    int64_t k = 0;
    double eps = kInf, delta = 0;  // delta: of the sampled normaliser
    int widths = 0;                // 0 sure, 1 calibrated, 2 bernstein
    double factor = 1;             // calibrated: of the sure radius
    double odds = 0;               // bernstein: ln(10 * classes * looks / rate)
    double share = 0.25;           // candidates beyond this share of the classes: read densely
};

struct RaceAnswer {
    std::vector<Scored> best;
    double lse = 0, error = kInf;
    bool finish_densely = false;  // to be finished densely
    int64_t rows = 0, entries = 0;
    double bytes = 0;
};

class ColumnReader {
  public:
    const void* weight = nullptr;
    Kind kind = Kind::f32;
    int64_t vocab = 0, dim = 0, padded = 0, rotated_dim = 0;
    const float* bias = nullptr;
    double most_norm = 0;
    Link link{LinkForm::affine, 1.f, 0.f};
    double link_a = 1, link_b = 0;
    const void* columns = nullptr;          // published: [padded / 64][rotated_dim][64] ; race: float32 [rotated_dim][padded]
    Kind column_kind = Kind::f32;
    const double* column_weight = nullptr;  // published: [rotated_dim] ; race: [blocks]
    const float* base = nullptr;            // [padded]: joins every estimate of a raw logit
    const float* size = nullptr;            // race: [padded] ‖B_i‖, rounded up
    const float* peak = nullptr;            // race: [padded] the longest block of a class
    const float* squares = nullptr;         // race: [blocks][padded] ‖B_i[block]‖^2, rounded down
    double lost = 0;                        // race: |<w, h> - <B, x>| <= lost * ‖w‖ * ‖h‖
    const Kernels* kernels = nullptr;
    const ColumnKernels* column = nullptr;

    int64_t blocks() const { return (rotated_dim + kColumns - 1) / kColumns; }
    double linked(double z) const { return headlong::linked(link.form, link_a, link_b, z); }
    double logit(const double* hidden, int64_t id) const;

    // x [rotated_dim], hidden [dim]; `key` names the query's noise. The link has to be affine.
    PublishedAnswer published(const double* x, const double* hidden, const uint8_t* mask, uint64_t seed, uint64_t key,
                              const PublishedRules& rules, int threads, float* estimates) const;
    RaceAnswer race(const double* x, const double* hidden, double shared, const uint8_t* mask, uint64_t seed, uint64_t key,
                    const RaceRules& rules, int threads) const;
};

// Work over runs of classes, in pieces that are whole strips.
void over_strips(int64_t padded, int threads, const std::function<void(int64_t, int64_t)>& work);

}  // namespace headlong
