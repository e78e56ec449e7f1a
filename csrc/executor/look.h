// A group of queries that look at all classes together, and what the look found.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "executor/largest.h"
#include "executor/plan.h"
#include "executor/question.h"
#include "runtime/scratch.h"

namespace headlong {

constexpr int64_t kChunk = 512;    // classes between two looks at the threshold
constexpr int kGroupQueries = 64;  // queries that read codes together

// How far the estimates of all classes are off: as one vector no longer than `length`, and each by `others` beside.
struct Apart {
    double length = 0;
    Radius others{};
};

// The queries of one group as a source wants them.
struct Prepared {
    int n = 0, padded = 0;
    std::vector<int8_t> planes;   // [segment][query][quad][plane][4]
    std::vector<int32_t> offset;  // [segment][query][plane]: what coding bytes as u + 128 adds
    std::vector<float> step;      // [segment][query]
    std::vector<Strip> strips;    // [segment], of a single query where the kernels take all of them at once
    std::vector<float> x;         // [query][width], or [width][padded] for a large group
    std::vector<float> add;       // [query]: <centre, hidden>
    std::vector<Radius> radius;   // [query]
    std::vector<Apart> apart;         // [query], or empty where it is not known
};

// Sums of exp(link(z) * beta - shift) over some classes.
struct Masses {
    double shift = -kInf;
    Kernels::Sums sums{0, 0, 0, 0};

    void join(double other_shift, const Kernels::Sums& more);
};

// What one thread gathered for one query.
struct Part {
    Largest<float, std::greater<float>> best;  // the k largest lower ends
    std::vector<int32_t> ids;                 // classes whose upper end reaches the threshold of their time
    std::vector<float> est, upper;
    int64_t seen = 0;
};

// Classes that are looked at without a break.
struct Span {
    int64_t first, count;
};

// A look at all classes by a group of queries.
struct Look {
    const Source* source;
    Prepared prepared;
    std::vector<int64_t> rows;      // which queries of the batch
    double together = 1;            // of how many that came together, and could share a dense pass
    Scratch<double> hidden;         // [query][dim]
    std::vector<Part> parts;        // [query][thread]
    Scratch<float> est;             // kept estimates [query][padded vocab], or empty
    Scratch<float> rad;             // and the radii, where a single query was asked to keep both, or empty
    Scratch<float> sampled;         // where they are not kept, those of the sample: [query][sample_size]
    std::vector<Span> spans;        // all classes, in the order of the look
    size_t sample = 0;              // how many of the spans are read first, as a sample of all classes
    int64_t sample_size = 0, sample_pieces = 0;  // classes in it; its part of the pieces
    std::vector<std::atomic<int>> finish_densely;
    std::vector<uint8_t> wanted;    // [query]: whether its estimates were asked for once more
    std::vector<std::atomic<float>> threshold;  // what a class has to reach
    std::vector<Masses> pieces;     // [query][piece]: sums that are joined in this order, whichever thread took them
    std::vector<Masses> masses;     // [query]
    int64_t piece_count = 0;
    std::vector<double> bytes;      // read so far for each query
    int threads = 1;

    // The sums of the first `count` pieces.
    Masses joined(int q, int64_t count) const {
        Masses all;
        for (int64_t p = 0; p < count; ++p) all.join(pieces[q * piece_count + p].shift, pieces[q * piece_count + p].sums);
        return all;
    }
    // Estimates of a span of the sample, which `before` classes of the sample precede.
    const float* estimates(int q, size_t span, int64_t before, int64_t padded) const {
        return est.empty() ? sampled.data() + q * sample_size + before : est.data() + q * padded + spans[span].first;
    }
};

// What a sample says of the normaliser: narrow enough as it is (or the sample cannot say), to be refined, or better read densely.
enum class Outlook { narrow, wide, finish_densely };

}  // namespace headlong
