// Asking for memory before it is needed.
#pragma once

#include <cstdint>

namespace headlong {

inline void prefetch(const uint8_t* from, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at);
}

}  // namespace headlong
