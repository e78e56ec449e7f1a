// The k largest logits from bounds on sixteen neighbours at once: blocks first, classes of open blocks, then exact rows.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>
#include <vector>

#include "blocks/looks.h"
#include "executor/question.h"

namespace headlong {

class LargestKey;  // sampling/largest_key.h

// A level of the tree: nodes in the plan's order, sixteen to a record. Node n's children are the record n of the level below,
// the last one's the classes at places 16 n ... 16 n + 15.
struct BlockLevel {
    const uint8_t* records = nullptr;
    int64_t groups = 0;
    RecordShape shape;
};

// The place of each class [vocab]: made when the first sample is drawn, for few callers need it.
struct Places {
    std::once_flag once;
    std::vector<int32_t> of;
};

// Whether searches for few classes are worth their while: once of kTried of them or more most were in vain, few calls make them, for
// queries may change. Searches may take longer where passes over all classes do.
struct Trial {
    static constexpr int kTried = 8, kRemembered = 128, kSeldom = 512, kShort = 64;
    double most = std::numeric_limits<double>::infinity();  // bytes beyond which a search was in vain, but for
    std::atomic<double> beyond{0};                          // what passes of late read beyond the codes of all classes
    std::atomic<int> tried{0}, in_vain{0}, passed_by{0}, wait{kTried};

    bool over() const { return tried >= kTried && 2 * in_vain > tried; }
    bool goes_on();  // of a call that is counted
    void count(double bytes, bool done);
    void passed(double more);  // what the pass of one query read beyond the codes
};

// What is read, all of it borrowed; see encode/blocks/boxes.py, which makes it.
struct Blocks {
    const void* weight = nullptr;
    Kind kind = Kind::f32;
    int64_t vocab = 0, dim = 0;
    const float* bias = nullptr;                         // or null
    const double *mean = nullptr, *centre = nullptr;     // [dim] each; centre or null
    const void* leading = nullptr;                          // [width][dim] as [strip][dim][columns of the strip]: x = leading (hidden - mean)
    const void* back = nullptr;                          // [width][dim]: x back gives most of hidden - mean again
    Kind rotation_kind = Kind::f16;                          // of both
    int64_t width = 0, boxed = 0;                         // coordinates of x that are read; those of boxes and blocks
    // The other coordinates, of which only lengths are taken: int8 codes [dim][rest], tiled, of the rotation's columns and their scales,
    // and per segment behind `width` what a length may be more: times ‖what x back leaves‖, ‖hidden - mean‖, ‖x‖.
    const int8_t* rest = nullptr;
    const float* rest_scale = nullptr;
    int64_t rest_width = 0;
    std::vector<double> rest_lost;
    std::vector<int64_t> edges;                          // of the segments whose lengths a bound takes, from `boxed` on
    const int32_t* order = nullptr;                      // [16 * groups]: the class at each place, -1 where there is none
    mutable Places places;                               // of each class, once samples are drawn
    const uint16_t* there = nullptr;                     // [groups] a bit for each place whose class may be answered; null: all
    std::vector<BlockLevel> levels;                      // coarse to fine; the last one's nodes are classes
    const uint8_t* closer = nullptr;                     // [vocab] records of single classes, by place, or null
    RecordShape closer_shape;
    int64_t closer_from = 0;                             // the first segment whose length a closer look takes
    // What joins the lengths: factors of ‖x[:boxed]‖, ‖x[boxed:width]‖, 1 and ‖hidden - mean‖ in the last length of a record.
    double shared[4] = {0, 0, 0, 0}, closer_shared[4] = {0, 0, 0, 0};
    double most_norm = 0;  // of any row, or 0
    double most = 0.25;  // the share of classes beyond which reading row by row is given up
    double gain = 0, largest = 0;  // no bound is above gain times the largest number of a query, and the largest base
    const Kernels* kernels = nullptr;
    const Looks* looks = nullptr;
    const int64_t* names = nullptr;    // [vocab] the id of each row, or null: its number
    const Blocks* next = nullptr;    // more classes, in a tree of their own of the same shape, searched after this one
    mutable Trial trials[2];  // of questions about all classes, and of those under a mask, which may be harder

    Trial& trial(bool masked) const { return trials[masked]; }
};

// Has to be called before a sample is drawn.
void know_places(const Blocks& blocks);

// What was found for one query: `done` is false where a search would have cost more than a scan of all classes.
struct SearchResult {
    std::vector<Scored> best;  // the k best
    int64_t rows = 0;
    double bytes = 0, opened = 0;  // opened: the share of the finest blocks
    bool done = false;
};

// hidden [count][dim]; mask [1 or count][vocab] (1: the class may be answered) or null, which it is where there are two trees. keys [count]:
// what may have the largest keys of each query's draws is sought instead.
std::vector<SearchResult> search(const Blocks& blocks, const double* hidden, int64_t count, int64_t k, const uint8_t* mask,
                           bool mask_per_row, int threads, LargestKey* keys = nullptr);

}  // namespace headlong
