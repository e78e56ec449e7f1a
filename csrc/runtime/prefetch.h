// Asking for memory before it is needed.
#pragma once

#include <cstdint>

namespace headlong {

inline __attribute__((always_inline)) void prefetch(const uint8_t* from, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at);
}

// The same into the second cache: the first has no room for what is still to come of dozens of rows.
inline __attribute__((always_inline)) void prefetch_row(const void* rows, int64_t bytes, int64_t id) {
    const uint8_t* from = static_cast<const uint8_t*>(rows) + id * bytes;
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at, 0, 2);
}

}  // namespace headlong
