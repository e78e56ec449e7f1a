// Every kernel of every level that this processor has, against the reference, on fuzzed inputs.
//
//   kernel_check [ROUNDS [SEED]]
//
// Levels that keep the reference's order of sums (neon, dotprod) are compared bit for bit, but for products of
// rows, which are fused and are held to their bounds against sums in long double; avxvnni is compared with avx2. avx2 and
// avx512vnni have orders of their own: bit for bit go sums of whole numbers, choices and noise, and the rest of them the tests in
// Python hold to its bounds. Prints, for each level, how many comparisons were made and a hash of all that the kernels wrote. At
// the end a table with a fault is to be found out.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "native/cases.h"

namespace headlong {
namespace {

const Level& standard_of(const std::string& level) { return *level_for(level == "avxvnni" ? "avx2" : "portable"); }

bool report(const Check& check, const Level& level, const Level& standard) {
    std::printf("%-12s against %-8s %7ld comparisons, hash %016llx%s\n", level.name, standard.name, check.comparisons(),
                static_cast<unsigned long long>(check.hash()), check.good() ? "" : "  FAILED");
    if (!check.good()) std::printf("  %s\n", check.fault().c_str());
    return check.good();
}

bool check_level(const Level& level, const Level& standard, int rounds, uint64_t seed) {
    const std::string name = level.name;
    Check check(level, standard, name == "avx2" || name == "avx512vnni");
    for (int round = 0; round < rounds && check.good(); ++round) {
        check.begin(seed * 1000003 + round);
        rows(check);
        classes(check);
        tables(check);
        edges(check, *level.scan);
    }
    return report(check, level, standard);
}

const Kernels* honest;
float off_by_one_bit(const void* row, Kind kind, int64_t dim) {
    const float norm = honest->row_norm(row, kind, dim);
    uint32_t raw;
    std::memcpy(&raw, &norm, sizeof raw);
    raw ^= 1;
    float other;
    std::memcpy(&other, &raw, sizeof raw);
    return other;
}

bool finds_a_fault(const Level& standard) {
    honest = standard.kernels;
    Kernels wrong = *honest;
    wrong.row_norm = off_by_one_bit;
    Level faulty = standard;
    faulty.kernels = &wrong;
    Check check(faulty, standard);
    check.begin(1);
    rows(check);
    std::printf("a table with one wrong bit is %s\n", check.good() ? "NOT FOUND OUT" : "found out");
    return !check.good();
}

}  // namespace
}  // namespace headlong

int main(int count, char** arguments) {
    using namespace headlong;
    const int rounds = count > 1 ? std::atoi(arguments[1]) : 20;
    const uint64_t seed = count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1;
    bool good = rounds > 0;
    for (const char* const* name = levels(); *name != nullptr; ++name)
        good &= check_level(*level_for(*name), standard_of(*name), rounds, seed);
#ifdef HEADLONG_EVEX
    if (level_for("avx512vnni") != nullptr) {
        const Level& standard = *level_for("avx2");
        const Level evex{"avxvnni-evex", standard.kernels, standard.looks, avxvnni_evex_scan()};
        Check check(evex, standard, false);
        for (int round = 0; round < rounds; ++round) check.begin(seed * 1000003 + round), estimates(check);
        good &= report(check, evex, standard);
    }
#endif
    good &= finds_a_fault(*level_for("portable"));
    return good ? 0 : 1;
}
