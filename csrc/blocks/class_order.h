// An order of the classes in which neighbours are alike; see encode/blocks/boxes.py.
#pragma once

#include <cstdint>

namespace headlong {

// features [count][width] -> order [count]: cut in two across the direction of the largest spread, again and again, down to
// sixteen; every piece but the last holds a power of sixteen, or several, so that sixteen neighbouring blocks are alike, too.
void neighbours(const float* features, int64_t count, int64_t width, int threads, int32_t* order);

}  // namespace headlong
