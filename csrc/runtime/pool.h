// One pool of threads for the process: engines share it, so that two of them never oversubscribe the machine.
#pragma once

#include <functional>

namespace headlong {

// Runs work(0) .. work(n - 1), each once, on this thread and others. If the pool is busy with another call, the caller
// does all of it alone. Safe after fork: the child grows threads of its own. `work` must not throw.
void run_parallel(int n, const std::function<void(int)>& work);

// Threads of a call: `asked`, or the processors this process may run on when it is 0.
int thread_count(int asked);

}  // namespace headlong
