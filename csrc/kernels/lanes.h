// A block of queries that go over the classes side by side: see executor/batch.cpp.
#pragma once

#include <vector>

#include "executor/executor.h"

namespace headlong {

constexpr int64_t kLanePiece = 512;  // classes that one thread takes at once

// The queries of a block, one in each lane.
struct Crowd {
    Look look;  // their vectors and, of each, the codes of a deeper level
    int n = 0, lanes = 0, threads = 1;
    Scratch<int8_t> planes;
    Scratch<int32_t> start;
    Scratch<float> step, terms;
    std::vector<LanePass> first, further;
    LaneRadius wide, closer_radius;  // after the first look, and after a further one
    Scratch<float> shift, octaves, tau, edge, worth, theta;  // [lanes]
    LaneLook ask;
    std::vector<double> aim;      // [n]: what of eps is left for drawing
    std::vector<uint8_t> narrow;  // [n]: whether float32 is enough for rows of the normaliser
    Scratch<float> floats;        // [n][dim]
    std::vector<uint64_t> key;    // [n]
    std::vector<std::vector<Scored>> sampled;  // [n]: the likeliest of the sample, scored
    int64_t pieces = 0, sample = 0;            // the first `sample` pieces of `order` are read first
    std::vector<int64_t> order;
    Scratch<float> est, largest;               // of the sample: [class][lanes], [run][lanes]
    Scratch<double> sums;                      // [piece][middle, gap, moved][lanes]
    std::vector<std::vector<LaneHit>> hits;    // [thread][lane], piece after piece
    std::atomic<int64_t> closer{0};            // classes that were read further
    std::vector<std::atomic<int64_t>> told;    // [lane]: of how many classes
    int64_t most_told = 0;                     // a query that is told of more is left to the others' way
};

// What became of one query: the classes that were told of, and the sums of all others.
struct Told {
    std::vector<LaneHit> hits;
    std::vector<uint8_t> scored;
    double middle = 0, gap = 0, moved = 0, exact = 0, lost = 0;  // sums of exp(. - shift); lost: what was taken off again
    double shift = 0, unit = 1;  // what one of the pass's sums is in these
    std::vector<Scored> best;
    int64_t rows = 0;

    void rebase(double to);
};

}  // namespace headlong
