// What the scans on AArch64 share: four classes a register, codes as signed bytes (those of at most 6 bits are below 64).
#define LANES 4
#define FUSED(a, b, c) (F) vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b))
#include "kernels/common/vectors.inl"
#include "scan/common.inl"

constexpr bool kSigned = true;
typedef uint8x16_t Q;

inline Q load_codes(const uint8_t* p) { return vld1q_u8(p); }
inline Q bytes_of(int value) { return vdupq_n_u8(static_cast<uint8_t>(value)); }
template <int N> inline Q right(Q q) { return vshrq_n_u8(q, N); }
template <int N> inline Q left(Q q) { return vshlq_n_u8(q, N); }
inline Q masked(Q q, Q mask) { return vandq_u8(q, mask); }
inline Q merged(Q q, Q mask, Q other) { return vorrq_u8(vandq_u8(q, mask), other); }
inline int8x16_t broadcast(const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
}
template <int Bits> inline int8x16_t signed_codes(Q codes) { return vreinterpretq_s8_u8(Bits == 8 ? veorq_u8(codes, vdupq_n_u8(128)) : codes); }
inline __attribute__((always_inline)) void ahead(const uint8_t* codes, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(codes + at, 0, 2);
}
constexpr int JOINED(int) { return 1; }
constexpr int ROWS(int lanes, int) { return lanes; }
constexpr int AT_ONCE(int rows) { return rows <= 4 ? 4 : 2; }
