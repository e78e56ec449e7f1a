// A query as every level of blocks wants it: rotated, its lengths rounded up, and what joins every bound.
#pragma once

#include <vector>

#include "blocks/search.h"

namespace headlong {

constexpr float kMostX = 1e30f;  // coordinates beyond are left to the other levels
constexpr double kMostBound = 0x1p126;  // and bounds that might be beyond: their parts have to stay numbers in float32

// The smallest float that is not below x.
float up(double x);

// Kept from call to call, so that nothing is allocated. `box`, `own` and `closer` are for boxes, for the classes of a block, and
// for what a closer look adds to those.
struct RotatedQuery {
    LookQuery box{}, own{}, closer{};
    double bytes = 0;  // that rotating took

    // False where float32 cannot hold the query.
    bool take(const Blocks& blocks, const double* hidden);
    // The same query for another tree, whose rounding is measured in other units. False as above.
    bool take_again(const Blocks& blocks);

  private:
    void take_rest(const Blocks& blocks);
    float add_lengths(const Blocks& blocks);
    bool holds(const Blocks& blocks, float lengths) const;

    float most_ = 0;  // the largest coordinate of x
    double length_ = 0;  // ‖hidden - mean‖
    std::vector<double> shifted_, rotated_, given_, rest_lengths_;
    std::vector<float> left_, rest_, x_, signs_, lengths_, closer_lengths_;
};

}  // namespace headlong
