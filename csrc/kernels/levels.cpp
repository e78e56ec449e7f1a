// The levels and their tables. A new level is a line here, and what it asks of the processor in kernels/cpu.cpp. Which of them runs is
// said in Python: HEADLONG_ISA is read, and a level that is not here refused, in src/headlong/native/instruction_level.py.
#include "kernels/levels.h"

#include <cstring>
#include <vector>

#include "kernels/cpu.h"

namespace headlong {
namespace {

const std::vector<Level>& levels_here() {
    [[maybe_unused]] static const Processor here = this_processor();
    static const std::vector<Level> all = [] {
        std::vector<Level> found = {{"portable", portable_kernels(), portable_looks(), portable_scan()}};
#ifdef HEADLONG_X86
        if (here.avx2) found.push_back({"avx2", avx2_kernels(), avx2_looks(), avx2_scan()});
        if (here.avxvnni) found.push_back({"avxvnni", avx2_kernels(), avx2_looks(), avxvnni_scan()});
        if (here.avx512vnni) found.push_back({"avx512vnni", avx512_kernels(), avx512_looks(), avx512_scan()});
#endif
#ifdef HEADLONG_ARM64
        found.push_back({"neon", neon_kernels(), neon_looks(), neon_scan()});
        if (here.dotprod) found.push_back({"dotprod", neon_kernels(), neon_looks(), dotprod_scan()});
#endif
        return found;
    }();
    return all;
}

}  // namespace

const char* const* levels() {
    static const std::vector<const char*> names = [] {
        std::vector<const char*> all;
        for (const Level& level : levels_here()) all.push_back(level.name);
        all.push_back(nullptr);
        return all;
    }();
    return names.data();
}

const Level* level_for(const char* name) {
    const std::vector<Level>& all = levels_here();
    if (*name == '\0') return &all.back();
    for (const Level& level : all)
        if (std::strcmp(name, level.name) == 0) return &level;
    return nullptr;
}

}  // namespace headlong
