#include "runtime/processors.h"

#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "runtime/text_file.h"

namespace headlong {
namespace {

constexpr int kMostThreads = 1024;

// quota / period, rounded up; 0 for no limit, or where the text is not two numbers.
int share(const std::string& numbers) {
    double quota = 0, period = 0;
    std::sscanf(numbers.c_str(), "%lf %lf", &quota, &period);
    return quota > 0 && period > 0 ? std::max(1, static_cast<int>(std::ceil(std::min(quota / period, 1e6)))) : 0;
}

int tighter(int a, int b) { return a == 0 ? b : b == 0 ? a : std::min(a, b); }

// Version 2: "max 100000" or "150000 100000".
int of_group(const std::string& folder) { return share(text_of(folder + "/cpu.max")); }

// Version 1: two files, a quota of -1 for no limit.
int of_old_group(const std::string& folder) {
    return share(text_of(folder + "/cpu.cfs_quota_us") + " " + text_of(folder + "/cpu.cfs_period_us"));
}

// The tightest of a group and those that hold it. A container may see its own group as the root of all.
template <typename Of>
int of_path(const std::string& mount, std::string path, Of of) {
    int least = of(mount);
    while (path.size() > 1) {
        least = tighter(least, of(mount + path));
        path.resize(path.find_last_of('/'));
    }
    return least;
}

int affinity() {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
    const unsigned n = std::thread::hardware_concurrency();
    return n == 0 ? 1 : static_cast<int>(n);
}

// A number from 1 to 1,024 that ends before `end`; 0 for anything else.
int thread_number(const char* text, char end) {
    int count = 0;
    for (; *text >= '0' && *text <= '9' && count <= kMostThreads; ++text) count = count * 10 + (*text - '0');
    return (*text == 0 || *text == end) && count <= kMostThreads ? count : 0;
}

}  // namespace

int processors_of_groups(const std::string& root) {
    const std::string text = text_of(root + "/proc/self/cgroup");
    const std::string mount = root + "/sys/fs/cgroup";
    int least = 0;
    for (size_t start = 0, end; start < text.size(); start = end + 1) {
        end = std::min(text.find('\n', start), text.size());
        const std::string line = text.substr(start, end - start);  // number:controllers:path
        const size_t one = line.find(':'), two = line.find(':', one + 1);
        if (one == std::string::npos || two == std::string::npos || two + 1 >= line.size() || line[two + 1] != '/') continue;
        const std::string path = line.substr(two + 1), names = "," + line.substr(one + 1, two - one - 1) + ",";
        if (names == ",,") least = tighter(least, of_path(mount, path, of_group));
        if (names.find(",cpu,") != std::string::npos) least = tighter(least, of_path(mount + "/cpu", path, of_old_group));
    }
    return least;
}

int processors() {
#if defined(__linux__)
    static std::atomic<int> limit{0};
    static std::atomic<int64_t> read{-1};
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    const int64_t now = std::chrono::duration_cast<std::chrono::seconds>(since).count() / 10;  // a run of ten seconds
    if (read.exchange(now) != now) limit.store(processors_of_groups(""));
    return tighter(affinity(), limit.load());
#else
    return affinity();
#endif
}

int threads_at_hand() {
    const char* own = std::getenv("HEADLONG_THREADS");
    if (own != nullptr && *own != 0) return thread_number(own, 0);
    const char* shared = std::getenv("OMP_NUM_THREADS");
    const int asked = shared == nullptr ? 0 : thread_number(shared, ',');  // of every level of nesting, the outermost first
    return std::min(tighter(processors(), asked), kMostThreads);
}

}  // namespace headlong
