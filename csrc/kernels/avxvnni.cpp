// AVX2 with VNNI in VEX: what client processors without AVX-512 have. Scans of codes alone differ (scan/avxvnni.cpp); the rest is avx2's.
#include "kernels/cpu.h"
#include "kernels/kernels.h"

namespace headlong {

const uint64_t avxvnni_features = compiled_features();

const Kernels* avxvnni_kernels() {
    static const Kernels table = [] {
        Kernels own = *avx2_kernels();
        own.isa = "avxvnni";
        return own;
    }();
    return &table;
}

}  // namespace headlong
