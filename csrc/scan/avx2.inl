// What the scans of AVX2 and AVX-VNNI share: eight classes a register.
#define LANES 8
#define LARGER(a, b) (F) _mm256_max_ps((__m256)(a), (__m256)(b))
#define SMALLER(a, b) (F) _mm256_min_ps((__m256)(a), (__m256)(b))
#define ANY(mask) (!_mm256_testz_si256((__m256i)(mask), (__m256i)(mask)))
#define FUSED(a, b, c) (F) _mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c))
#define INVERSE_ROOT(a) _mm256_rsqrt_ps((__m256)(a))
#define MASK_OF(mask) static_cast<uint64_t>(static_cast<unsigned>(_mm256_movemask_ps((__m256)(mask))))
#include "kernels/common/vectors.inl"
#include "scan/common.inl"

typedef __m256i Q;
typedef __m256i Sum;

inline Q load_codes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline Q bytes_of(int value) { return _mm256_set1_epi8(static_cast<char>(value)); }
template <int N> inline Q right(Q q) { return _mm256_srli_epi32(q, N); }
template <int N> inline Q left(Q q) { return _mm256_slli_epi32(q, N); }
inline Q masked(Q q, Q mask) { return _mm256_and_si256(q, mask); }
inline Q merged(Q q, Q mask, Q other) { return _mm256_or_si256(_mm256_and_si256(q, mask), other); }
inline Q broadcast(const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, 4);
    return _mm256_set1_epi32(four);
}
inline I total(Sum sum) { return (I)sum; }
inline __attribute__((always_inline)) void ahead(const uint8_t* codes, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) _mm_prefetch(reinterpret_cast<const char*>(codes) + at, _MM_HINT_T1);
}
constexpr int AT_ONCE(int rows) { return rows == 1 ? 8 : rows == 2 ? 4 : rows == 4 ? 2 : 1; }
