// The scan with AVX-512 and VNNI: sixteen classes a register.
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/levels.h"
#include "scan/tiles.h"

namespace headlong {
namespace {

#define LANES 16
#define LARGER(a, b) (F) _mm512_max_ps((__m512)(a), (__m512)(b))
#define SMALLER(a, b) (F) _mm512_min_ps((__m512)(a), (__m512)(b))
#define ANY(mask) (_mm512_test_epi32_mask((__m512i)(mask), (__m512i)(mask)) != 0)
#define SUM(v) _mm512_reduce_add_ps((__m512)(v))
#define FUSED(a, b, c) (F) _mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c))
#define INVERSE_ROOT(a) _mm512_rsqrt14_ps((__m512)(a))
#define MASK_OF(mask) static_cast<uint64_t>(_mm512_movepi32_mask((__m512i)(mask)))
#include "kernels/common/vectors.inl"
#include "scan/common.inl"

constexpr bool kSigned = false;
typedef __m512i Q;
typedef __m512i Sum;

inline Q load_codes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline Q bytes_of(int value) { return _mm512_set1_epi8(static_cast<char>(value)); }
template <int N> inline Q right(Q q) { return _mm512_srli_epi32(q, N); }
template <int N> inline Q left(Q q) { return _mm512_slli_epi32(q, N); }
inline Q masked(Q q, Q mask) { return _mm512_and_si512(q, mask); }
inline Q merged(Q q, Q mask, Q other) { return _mm512_ternarylogic_epi32(q, mask, other, 0xEA); }
inline Q broadcast(const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, 4);
    return _mm512_set1_epi32(four);
}
template <int Bits> inline void dots(Sum& sum, const Q (&codes)[1], const Q (&x)[1]) { sum = _mm512_dpbusd_epi32(sum, codes[0], x[0]); }
inline I total(Sum sum) { return (I)sum; }
inline __attribute__((always_inline)) void ahead(const uint8_t* codes, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) _mm_prefetch(reinterpret_cast<const char*>(codes) + at, _MM_HINT_T1);
}
constexpr int JOINED(int) { return 1; }
constexpr int ROWS(int lanes, int) { return lanes; }
constexpr int AT_ONCE(int rows) { return rows <= 4 ? 4 : 2; }

#include "scan/estimate.inl"

}  // namespace

const ScanKernels* avx512_scan() { return &kScan; }

}  // namespace headlong
