// What a processor has to offer, by the level that asks for it.
#pragma once

namespace headlong {

// Whether this processor and its operating system have every extension that CMakeLists.txt names for a level's files.
struct Processor {
    bool avx2 = false, avxvnni = false, avx512vnni = false;  // x86-64
    bool dotprod = false;                                     // AArch64
};
Processor this_processor();

}  // namespace headlong
