// Where the time of one call goes: marks that the thread of the call leaves behind when it was asked to. Without that, a mark is
// one look at a thread's own pointer.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

namespace headlong {

struct Trace {
    std::vector<std::pair<const char*, int64_t>> marks;  // what ended, and the clock's nanoseconds then
};

inline Trace*& own_trace() {
    thread_local Trace* own = nullptr;
    return own;
}

// What came before this line, since the last mark, was `what`.
inline void mark(const char* what) {
    Trace* own = own_trace();
    if (own == nullptr) return;
    own->marks.emplace_back(what, std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

}  // namespace headlong
