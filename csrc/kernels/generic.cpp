// The vector types of the compiler for the baseline that it compiles for: no processor is left with plain loops.
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <cmath>
#include <cstring>

#include "kernels/cpu.h"
#include "kernels/kernels.h"

namespace headlong {
namespace {

#define LANES 4
#include "kernels/common/all.inl"

typedef int16_t Shorts __attribute__((vector_size(16)));
typedef uint16_t Words __attribute__((vector_size(16)));

template <Kind K>
inline F load4(const void* row, int64_t j) {
    return four_entries<K>(static_cast<const char*>(row) + j * item_bytes(K));
}
inline D low_half(F v) { return D{v[0], v[1]}; }
inline D high_half(F v) { return D{v[2], v[3]}; }
inline F fused(F a, F b, F c) { return a * b + c; }

#include "kernels/common/row_products_4_wide.inl"

template <typename To, typename From>
inline To as(From from) {
    To to;
    static_assert(sizeof to == sizeof from, "the same bytes");
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// a[0] b[0] + a[1] b[1] in each sum; a product of a code and a number fits 16 bits.
inline I pair_sums(Shorts a, Shorts b) {
#ifdef __SSE2__
    return as<I>(_mm_madd_epi16(as<__m128i>(a), as<__m128i>(b)));
#else
    const I both = as<I>(static_cast<Shorts>(a * b));
    return (both << 16 >> 16) + (both >> 16);
#endif
}

// Four bytes in each sum, the first and third of which are taken apart from the others.
struct Signed {
    Shorts even, odd;
};
inline Signed apart(I bytes) {
    const Shorts all = as<Shorts>(bytes);
    return {as<Shorts>(as<Words>(all) << 8) >> 8, all >> 8};
}
inline I dots_of(I sum, I codes, const Signed& x) {
    const Words all = as<Words>(codes);
    return sum + pair_sums(as<Shorts>(static_cast<Words>(all & 255)), x.even) + pair_sums(as<Shorts>(static_cast<Words>(all >> 8)), x.odd);
}

struct Dots {
    using Codes = I;
    using X = I;
    using Sum = I;
    static constexpr int registers = 2;  // few: of other processors, many have sixteen
    static constexpr int most = 4;
    static constexpr bool centred = false;

    static X load(const int8_t* planes) {
        X x;
        std::memcpy(&x, planes, sizeof x);
        return x;
    }
    static X half(const int8_t* planes) {
        X x{};
        std::memcpy(&x, planes, sizeof x / 2);
        return x;
    }
    template <int At>
    static void add(Sum& sum, Codes codes, X x) {
        sum = dots_of(sum, codes, apart(I{} + x[At]));
    }
    static I total(Sum sum) { return sum; }
    template <int M>
    static void vectors(const uint8_t*& from, int64_t next, Codes (&to)[M]) {
        std::memcpy(to, from, sizeof to);
        from += next;
    }
};

#include "kernels/common/scan_codes_4_wide.inl"

#include "kernels/common/table.inl"

}  // namespace

const Kernels* generic_kernels() {
    static constexpr Kernels table = table_of("generic", scan_u8, 1.25);
    return &table;
}

}  // namespace headlong
