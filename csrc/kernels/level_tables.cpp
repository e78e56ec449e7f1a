// The levels, their tables, and what each asks of the CPU, which nothing else looks at. A new level is a line here. Which of them
// runs is said in Python: HEADLONG_ISA is read, and a level that is not here refused, in src/headlong/native/instruction_level.py.
#include <cstring>

#include "blocks/looks.h"
#include "kernels/cpu.h"
#include "kernels/kernels.h"
#include "scan/tiles.h"

namespace headlong {
namespace {

struct Entry {
    const char* name;
    bool usable;
    const Kernels* (*kernels)();
    const Looks* (*looks)();
    const ScanKernels* (*scan)();
};

const Entry* entries(int* count) {
    [[maybe_unused]] static const uint64_t here = features_here();
    static const Entry all[] = {
        {"portable", true, portable_kernels, portable_looks, portable_scan},
        {"generic", true, generic_kernels, generic_looks, portable_scan},
#ifdef HEADLONG_X86
        {"avx2", (avx2_features & ~here) == 0, avx2_kernels, avx2_looks, avx2_scan},
        {"avxvnni", (avxvnni_features & ~here) == 0, avxvnni_kernels, avx2_looks, avxvnni_scan},
        {"avx512vnni", (avx512_features & ~here) == 0, avx512_kernels, avx512_looks, avx512_scan},
#endif
#ifdef HEADLONG_ARM64
        {"neon", true, neon_kernels, neon_looks, neon_scan},
        {"dotprod", (dotprod_features & ~here) == 0, dotprod_kernels, neon_looks, dotprod_scan},
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

namespace {

const Entry* entry_for(const char* isa) {
    int count;
    const Entry* all = entries(&count);
    for (int i = count - 1; i >= 0; --i)
        if (all[i].usable && (*isa == '\0' || std::strcmp(isa, all[i].name) == 0)) return &all[i];
    return nullptr;
}

}  // namespace

const Kernels* kernels_for(const char* isa) {
    const Entry* entry = entry_for(isa);
    return entry == nullptr ? nullptr : entry->kernels();
}

const Looks* looks_for(const char* isa) {
    const Entry* entry = entry_for(isa);
    return entry == nullptr ? nullptr : entry->looks();
}

const ScanKernels* scan_for(const char* isa) {
    const Entry* entry = entry_for(isa);
    return entry == nullptr ? nullptr : entry->scan();
}

}  // namespace headlong
