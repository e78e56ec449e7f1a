// A group of queries that go over the classes side by side: see side_by_side/group_queries.cpp.
#pragma once

#include <vector>

#include "executor/look_costs.h"
#include "executor/verbs.h"

namespace headlong {

constexpr int64_t kLanePiece = 512;  // classes that one thread takes at once
constexpr double kMore = 1.7;        // points that are marked for each that is wanted
constexpr int64_t kEvery = 8;        // one in so many of them is a sample

// The queries of a group, one in each lane.
struct BatchState {
    Look look;  // their vectors and, of each, the codes of a deeper level
    int n = 0, lanes = 0, threads = 1;
    Scratch<int8_t> planes;
    Scratch<int32_t> start;
    Scratch<float> step, terms;
    std::vector<LanePass> first, further;
    LaneRadius wide, closer_radius;  // after the first look, and after a further one
    Scratch<float> shift, octaves, tau, edge, worth, theta;  // [lanes]
    LaneLook ask;
    std::vector<double> aim, fixed;  // [n]: what of eps is left for drawing, and what roundings take
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
    std::vector<std::atomic<int64_t>> reported;    // [lane]: of how many classes
    int64_t most_reported = 0;                     // a query that has more is answered by itself
};

// What became of one query: the classes that were reported to it, and the sums of all others.
struct Reported {
    std::vector<LaneHit> hits;
    std::vector<uint8_t> scored;
    double middle = 0, gap = 0, moved = 0, exact = 0, lost = 0;  // sums of exp(. - shift); lost: what was taken off again
    double shift = 0, unit = 1;  // what one of the pass's sums is in these
    std::vector<Scored> best;
    int64_t rows = 0;

    void rebase(double to);
};

// Whether a normaliser is asked for, within any error: where k classes are wanted and it is not, nothing is summed up.
inline bool wants_sums(const Question& question) { return question.eps < kInf || question.k == 0; }

// side_by_side/group_queries.cpp: whether a call is one for queries side by side, and what of it is left to the others' way
bool side_by_side(const Executor& e, const Question& question, int64_t count);
std::vector<int64_t> ask_side_by_side(const Executor& e, const double* hidden, int64_t count, const Question& question,
                                      std::vector<Answer>& answers, bool* expensive);

// side_by_side/prepare.cpp, side_by_side/pilot_sample.cpp
void prepare_batch(const Executor& e, BatchState& batch);
void read_sample(const Executor& e, BatchState& batch, const Question& question);
void scan_piece(const Executor& e, const BatchState& batch, int64_t piece, float* est);  // [class][lanes]

// side_by_side/pass.cpp
bool pass_over(const Executor& e, BatchState& batch);  // false: the batch is better read densely
Reported report_of(const BatchState& batch, int q);

// side_by_side/one_query.cpp: false where the query is left to the others' way
bool resolve_reported(const Executor& e, const BatchState& batch, const Question& question, int q, Answer& answer);

}  // namespace headlong
