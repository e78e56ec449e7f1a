// Picks a kernel table by what the CPU can do; nothing else looks at the CPU.
#include <cstring>

#include "kernels/cpu.h"
#include "kernels/kernels.h"

namespace headlong {
namespace {

struct Entry {
    const char* name;
    bool usable;
    const Kernels* (*table)();
};

const Entry* entries(int* count) {
    [[maybe_unused]] static const uint64_t here = features_here();
    static const Entry all[] = {
        {"portable", true, portable_kernels},
        {"generic", true, generic_kernels},
#ifdef HEADLONG_X86
        {"avx2", (avx2_features & ~here) == 0, avx2_kernels},
        {"avxvnni", (avxvnni_features & ~here) == 0, avxvnni_kernels},
        {"avx512vnni", (avx512_features & ~here) == 0, avx512_kernels},
#endif
#ifdef HEADLONG_ARM64
        {"neon", true, neon_kernels},
        {"dotprod", (dotprod_features & ~here) == 0, dotprod_kernels},
        {"i8mm", (i8mm_features & ~here) == 0, i8mm_kernels},
#endif
    };
    *count = static_cast<int>(sizeof all / sizeof all[0]);
    return all;
}

}  // namespace

const char* const* levels() {
    struct Names {
        const char* list[8] = {};
        Names() {
            int count, used = 0;
            const Entry* all = entries(&count);
            for (int i = 0; i < count; ++i)
                if (all[i].usable) list[used++] = all[i].name;
        }
    };
    static const Names names;
    return names.list;
}

const Kernels* kernels_for(const char* isa) {
    int count;
    const Entry* all = entries(&count);
    for (int i = count - 1; i >= 0; --i)
        if (all[i].usable && (*isa == '\0' || std::strcmp(isa, all[i].name) == 0)) return all[i].table();
    return nullptr;
}

}  // namespace headlong
