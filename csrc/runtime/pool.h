// One pool of threads for the process: engines share it, so that two of them never oversubscribe the machine.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

#include "runtime/interrupts.h"
#include "runtime/processors.h"

namespace headlong {

// Runs work(with, 0) .. work(with, n - 1), each once, on this thread and on others that come in time: nobody waits for a piece
// that no other thread has begun. If the pool is busy with another call, the caller does all of it alone. A piece that throws
// ends the call: no further piece is begun, those that were are waited for, and the first exception is thrown here. Safe after
// fork: the child grows threads of its own.
void run_pieces(int n, void (*work)(void*, int), void* with);

// For tests and measurements: 0, our own threads alone; 1, the host's OpenMP team wherever there is one; -1, whichever is faster.
void tell_way(int way);

// What was learned of which is faster is forgotten: other work comes now.
void forget_ways();

// How many calls of run_pieces the host's OpenMP team has run so far.
int64_t team_rounds();

template <typename Work>
void run_parallel(int n, Work&& work) {
    using Plain = std::remove_reference_t<Work>;
    run_pieces(n, [](void* with, int i) { (*static_cast<Plain*>(with))(i); },
               const_cast<void*>(static_cast<const void*>(std::addressof(work))));
}

}  // namespace headlong
