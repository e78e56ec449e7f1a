// How many processors this process may use.
#pragma once

#include <algorithm>
#include <string>

namespace headlong {

// The processors that this process may run on, at least 1: its affinity, and the share of time that its control groups leave
// it, rounded up. Affinity is read every time, control groups every ten seconds.
int processors();

// Threads of a call that names none: HEADLONG_THREADS; else OMP_NUM_THREADS, which schedulers set, but no more than processors();
// else those. 0: HEADLONG_THREADS is not a number that is allowed, which Python refuses in words.
int threads_at_hand();

// Threads of a call: `asked`, or what is at hand when it is 0.
inline int thread_count(int asked) { return asked > 0 ? asked : std::max(1, threads_at_hand()); }

// The share of control groups as a file system under `root` tells it ("" is this machine's); 0 where nothing limits it.
int processors_of_groups(const std::string& root);

}  // namespace headlong
