// Picks a kernel table by what the CPU can do; nothing else looks at the CPU.
#include <cstring>

#include "kernels.h"

namespace headlong {
namespace {

struct Entry {
    const char* name;
    bool usable;
    const Kernels* (*table)();
};

const Entry* entries(int* count) {
    static const Entry all[] = {
        {"portable", true, portable_kernels},
#ifdef HEADLONG_X86
        {"avx2", __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"), avx2_kernels},
        {"avx512vnni",
         __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"),
         avx512_kernels},
#endif
    };
    *count = static_cast<int>(sizeof all / sizeof all[0]);
    return all;
}

}  // namespace

const char* const* levels() {
    static const char* names[8] = {};
    if (names[0] == nullptr) {
        int count, used = 0;
        const Entry* all = entries(&count);
        for (int i = 0; i < count; ++i)
            if (all[i].usable) names[used++] = all[i].name;
    }
    return names;
}

const Kernels* kernels_for(const char* isa) {
    int count;
    const Entry* all = entries(&count);
    for (int i = count - 1; i >= 0; --i)
        if (all[i].usable && (*isa == '\0' || std::strcmp(isa, all[i].name) == 0)) return all[i].table();
    return nullptr;
}

}  // namespace headlong
