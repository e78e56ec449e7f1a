// How many processors this process may use.
#pragma once

#include <string>

namespace headlong {

// The processors that this process may run on, at least 1: its affinity, and the share of time that its control groups leave
// it, rounded up. Affinity is read every time, control groups every ten seconds.
int processors();

// The share of control groups as a file system under `root` tells it ("" is this machine's); 0 where nothing limits it.
int processors_of_groups(const std::string& root);

}  // namespace headlong
