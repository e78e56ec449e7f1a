// Rotated codes: a few bits of every coordinate, and how far off an estimate can be, for certain or except with a chosen probability.
//
//     x = (hidden - mean) @ rotation,      v_i = the row of class i, less the centre, in the same coordinates
//     estimate_i = base_i + sum_s scale_is <q_is, x^_s>,      e_is = scale_is q_is - v_is, orthogonal to v_is
//
// Every segment s of n_s coordinates was rotated at random, so that for any hidden vector and any row the error of the segment is
// |x_s| |e_is| times a coordinate of a uniform point of a sphere in n_s - 1 dimensions: sub-Gaussian with variance 1 / (n_s - 1). x^ is x in
// whole steps, rounded up or down at random so that its mean is x: each coordinate adds at most step_s^2 / 4. Hence
//
//     P(error >= kappa sigma_i) <= exp(-kappa^2 / 2),      sigma_i^2 = sum_s |x_s|^2 |e_is|^2 / (n_s - 1) + step_s^2 |scale_is q_is|^2 / 4
//     |error| <= sum_s |x_s| |e_is| + |x_s - x^_s| |scale_is q_is|,      for certain
//
// and roundings are added to both. A tile of classes has the radius of its |e_s| and scales, and each class a share of that which its own
// radius does not exceed, whatever x is: the largest of its |e_is| and scales over the tile's. docs/how.md has the derivation;
// encode/tiles.py makes the arrays.
#pragma once

#include <cstdint>
#include <vector>

#include "executor/executor.h"
#include "runtime/scratch.h"
#include "scan/tiles.h"

namespace headlong {

struct CodeSegment {
    int64_t coordinates;  // n_s
    int64_t column;       // where its columns begin: each segment has a multiple of 32, those that pad are zeros
    int planes;           // int8 planes of x that its codes are multiplied with
    double code_norm;     // the largest |q_is|
    double most;          // the largest |scale_is q_is|
    double x_error;       // |x_s| is off by at most that times |hidden - mean|
    double row_error;     // |v_is| is off by at most that
};

struct Codes {
    const Executor* rows = nullptr;  // the rows themselves: exact logits, and the full scan
    const ScanKernels* scan = nullptr;
    TileLayout layout;
    const uint8_t* tiles = nullptr;
    int64_t count = 0, width = 0;  // tiles; columns of the rotation
    const double *mean = nullptr, *centre = nullptr;
    const float* rotation = nullptr;
    std::vector<CodeSegment> segments;
    double lost = 0;       // <hidden - mean, row - centre> is off by at most that times |hidden - mean| in these coordinates
    double most_base = 0;  // the largest |base|
    double unit = 1;       // a power of two near the largest error norm or scale of any tile

    const uint8_t* tile(int64_t i) const { return tiles + i * layout.bytes; }
    const float* shares(int64_t i) const { return reinterpret_cast<const float*>(tile(i) + layout.shares); }
    double bytes() const { return static_cast<double>(count * layout.bytes) + static_cast<double>(rows->dim * width * 4); }
};

// One query in the codes' coordinates.
struct CodeQuery {
    const double* hidden = nullptr;
    double add = 0;       // <centre, hidden>, which joins every estimate
    double summed = 0;    // what float64 sums and a logit's own rounding may be off: logits closer than that may be equal
    double constant = 0;  // roundings
    bool usable = true;   // within float32's range; else its rows are scanned in full
    struct Segment {
        double norm, step, loss;  // |x_s| at most; of the last plane; |x_s - x^_s| at most
    };
    std::vector<Segment> segments;
};

// Queries as the scan takes them: `lanes` of them side by side, those beyond `n` zeros.
struct CodeGroup {
    int64_t first = 0;
    int n = 0, lanes = 1;
    std::vector<ScanPass> passes;
    std::vector<int8_t> x;
    std::vector<int32_t> sums;
    std::vector<float> steps;
};

struct PreparedCodes {
    std::vector<CodeQuery> queries;
    std::vector<CodeGroup> groups;
    std::vector<int8_t> x;  // [query][passes' columns], as a group of one lane has them
    std::vector<int32_t> sums;
    std::vector<float> steps;
    int64_t passes = 0, columns = 0;  // of a query, over all passes

    CodeGroup alone(const Codes& codes, int64_t query) const;
};

PreparedCodes prepare_codes(const Codes& codes, const double* hidden, int64_t n, uint64_t seed, int threads);

// The largest power of two that is no more than a number; 1 where there is none.
double power_near(double x);
// How many standard deviations a rate allows one of `events` to exceed.
double kappa_of(double events, double delta);
// The radii of `n` queries side by side, at kappa; for certain where kappa is 0.
ScanRadii radii_of(const Codes& codes, const CodeQuery* queries, int n, double kappa);

std::vector<Answer> ask(const Codes& codes, const double* hidden, int64_t n, const Question& question);

}  // namespace headlong
