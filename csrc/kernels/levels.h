// The levels: what there is for an instruction set, and which of them this processor can run.
#pragma once

namespace headlong {

struct Kernels;
struct Looks;
struct ScanKernels;

struct Level {
    const char* name;
    const Kernels* kernels;
    const Looks* looks;
    const ScanKernels* scan;
};

// A level by name ("portable", "avx2", ...); "" is the best that this processor has; nullptr if it lacks it.
const Level* level_for(const char* name);

// Names of the levels that this processor has, the best last; ends with nullptr.
const char* const* levels();

const Kernels* portable_kernels();  // any processor, and the reference
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const Kernels* neon_kernels();  // every AArch64

const Looks* portable_looks();
const Looks* avx2_looks();
const Looks* avx512_looks();
const Looks* neon_looks();

const ScanKernels* portable_scan();
const ScanKernels* avx2_scan();
const ScanKernels* avxvnni_scan();
const ScanKernels* avx512_scan();
const ScanKernels* neon_scan();
const ScanKernels* dotprod_scan();

}  // namespace headlong
