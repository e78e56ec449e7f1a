// AArch64 with SDOT. Scans of codes alone differ (scan/dotprod.cpp); the rest is neon's.
#include "kernels/cpu.h"
#include "kernels/kernels.h"

namespace headlong {

const uint64_t dotprod_features = compiled_features();

const Kernels* dotprod_kernels() {
    static const Kernels table = [] {
        Kernels own = *neon_kernels();
        own.isa = "dotprod";
        return own;
    }();
    return &table;
}

}  // namespace headlong
