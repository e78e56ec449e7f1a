// What AVX-512 machines have beyond VNNI, measured against what headlong uses: other ways to take codes of a few bits out of
// their words, and bfloat16 rows by vdpbf16ps. benchmarks/kernels/avx512_extras.py compiles and runs it.
//
//   avx512_extras ROUNDS     prints one line for each case: what, method, size, nanoseconds a class (median), largest error
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr int64_t kDim = 512, kQuads = kDim / 4;
enum class Way { shift, multishift, affine };

inline void add_dots(__m512i& sum, __m512i codes, __m512i x) { __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(x)); }

// The bits from g * Bits on of every byte.
template <int Bits, Way W>
inline __m512i field(__m512i word, int g) {
    const __m512i mask = _mm512_set1_epi8(static_cast<char>((1 << Bits) - 1));
    if (Bits == 8) return word;
    if (W == Way::shift) return _mm512_and_si512(_mm512_srli_epi32(word, g * Bits), mask);
    if (W == Way::multishift) {
        const int64_t from = static_cast<int64_t>(0x3830282018100800u + 0x0101010101010101u * static_cast<uint64_t>(g * Bits));
        return _mm512_and_si512(_mm512_multishift_epi64_epi8(_mm512_set1_epi64(from), word), mask);
    }
    uint64_t matrix = 0;  // row i of the product, from the highest byte down, is bit g * Bits + i
    for (int i = 0; i < Bits; ++i) matrix |= uint64_t{1} << ((7 - i) * 8 + g * Bits + i);
    return _mm512_gf2p8affine_epi64_epi8(word, _mm512_set1_epi64(static_cast<int64_t>(matrix)), 0);
}

// 64 classes, as kernels/avx512.cpp scans them for one query: words of four bytes a class, 8 / Bits quads in each.
template <int Bits, Way W>
void scan_block(const uint8_t* block, const int8_t* planes, int32_t* out) {
    constexpr int kGroups = 8 / Bits;
    __m512i high[4], low[4];
    for (int v = 0; v < 4; ++v) high[v] = low[v] = _mm512_setzero_si512();
    for (int64_t j = 0; j < kQuads / kGroups; ++j) {
        const uint8_t* at = block + j * 256;
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) _mm_prefetch(reinterpret_cast<const char*>(at) + v * 64 + 4096, _MM_HINT_T0);
#pragma GCC unroll 8
        for (int g = 0; g < kGroups; ++g) {
            int32_t x[2];
            std::memcpy(x, planes + (j * kGroups + g) * 8, 8);
            const __m512i x0 = _mm512_set1_epi32(x[0]), x1 = _mm512_set1_epi32(x[1]);
#pragma GCC unroll 4
            for (int v = 0; v < 4; ++v) {
                const __m512i u = field<Bits, W>(_mm512_loadu_si512(at + v * 64), g);
                add_dots(high[v], u, x0), add_dots(low[v], u, x1);
            }
        }
    }
    for (int v = 0; v < 4; ++v) _mm512_storeu_si512(out + 32 * v, high[v]), _mm512_storeu_si512(out + 32 * v + 16, low[v]);
}

// Codes of 6 or 3 bits, which headlong does not store: 48 bytes hold one (two) quads of sixteen classes, three bytes each.
template <int Bits>
void scan_packed(const uint8_t* block, const int8_t* planes, int32_t* out) {
    static_assert(Bits == 6 || Bits == 3, "three bytes a class");
    constexpr int kGroups = Bits == 6 ? 1 : 2;
    uint8_t places[64];
    for (int i = 0; i < 64; ++i) places[i] = static_cast<uint8_t>(i / 8 * 6 + std::min(i % 8, 5));  // six bytes to every eight
    const __m512i spread = _mm512_loadu_si512(places), mask = _mm512_set1_epi8((1 << Bits) - 1);
    __m512i from[kGroups];
    for (int g = 0; g < kGroups; ++g) {
        uint8_t shifts[64];
        for (int i = 0; i < 64; ++i) shifts[i] = static_cast<uint8_t>(i % 8 / 4 * 24 + g * 12 + i % 4 * Bits);
        from[g] = _mm512_loadu_si512(shifts);
    }
    __m512i high[4], low[4];
    for (int v = 0; v < 4; ++v) high[v] = low[v] = _mm512_setzero_si512();
    for (int64_t j = 0; j < kQuads / kGroups; ++j) {
        const uint8_t* at = block + j * 192;
#pragma GCC unroll 3
        for (int v = 0; v < 3; ++v) _mm_prefetch(reinterpret_cast<const char*>(at) + v * 64 + 4096, _MM_HINT_T0);
        __m512i word[4];
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) word[v] = _mm512_permutexvar_epi8(spread, _mm512_loadu_si512(at + v * 48));
#pragma GCC unroll 2
        for (int g = 0; g < kGroups; ++g) {
            int32_t x[2];
            std::memcpy(x, planes + (j * kGroups + g) * 8, 8);
            const __m512i x0 = _mm512_set1_epi32(x[0]), x1 = _mm512_set1_epi32(x[1]);
#pragma GCC unroll 4
            for (int v = 0; v < 4; ++v) {
                const __m512i u = _mm512_and_si512(_mm512_multishift_epi64_epi8(from[g], word[v]), mask);
                add_dots(high[v], u, x0), add_dots(low[v], u, x1);
            }
        }
    }
    for (int v = 0; v < 4; ++v) _mm512_storeu_si512(out + 32 * v, high[v]), _mm512_storeu_si512(out + 32 * v + 16, low[v]);
}

// The code that plain arithmetic finds for quad j, byte i of class c of a block.
int code_at(const uint8_t* block, int bits, int64_t j, int64_t c, int i) {
    if (bits == 6 || bits == 3) {
        const int groups = bits == 6 ? 1 : 2;
        const uint8_t* at = block + j / groups * 192 + c / 16 * 48 + c % 16 * 3;
        const uint32_t all = at[0] | at[1] << 8 | at[2] << 16;
        return static_cast<int>(all >> (j % groups * 12 + i * bits) & ((1u << bits) - 1));
    }
    const int groups = 8 / bits;
    return block[(j / groups * 64 + c) * 4 + i] >> (j % groups * bits) & ((1 << bits) - 1);
}

// ---- bfloat16 rows ----

inline uint16_t rounded(float v) {
    uint32_t raw;
    std::memcpy(&raw, &v, 4);
    return static_cast<uint16_t>((raw + 0x7FFF + (raw >> 16 & 1)) >> 16);
}
inline float widened(uint16_t v) {
    const uint32_t raw = static_cast<uint32_t>(v) << 16;
    float out;
    std::memcpy(&out, &raw, 4);
    return out;
}

// As kernels/avx512.cpp: entries widened to float32, products fused. Eight rows, N queries.
template <int N>
void rows_widened(const uint16_t* rows, const float* x, const uint16_t*, float* out) {
    constexpr int R = N == 1 ? 8 : 3;
    for (int64_t r = 0; r + R <= 24; r += R) {
        __m512 sum[R][N];
#pragma GCC unroll 8
        for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
            for (int q = 0; q < N; ++q) sum[i][q] = _mm512_setzero_ps();
        for (int64_t j = 0; j < kDim; j += 16) {
            __m512 w[R];
#pragma GCC unroll 8
            for (int i = 0; i < R; ++i)
                w[i] = _mm512_castsi512_ps(_mm512_slli_epi32(
                    _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows + (r + i) * kDim + j))), 16));
#pragma GCC unroll 8
            for (int q = 0; q < N; ++q) {
                const __m512 v = _mm512_loadu_ps(x + q * kDim + j);
#pragma GCC unroll 8
                for (int i = 0; i < R; ++i) sum[i][q] = _mm512_fmadd_ps(w[i], v, sum[i][q]);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
            for (int q = 0; q < N; ++q) out[q * 24 + r + i] = _mm512_reduce_add_ps(sum[i][q]);
    }
}

// x as a sum of Parts bfloat16 numbers: three say all of a float32.
template <int N, int Parts>
void rows_bf16(const uint16_t* rows, const float*, const uint16_t* parts, float* out) {
    constexpr int R = N == 1 ? 8 : 3;
    for (int64_t r = 0; r + R <= 24; r += R) {
        __m512 sum[R][N];
#pragma GCC unroll 8
        for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
            for (int q = 0; q < N; ++q) sum[i][q] = _mm512_setzero_ps();
        for (int64_t j = 0; j < kDim; j += 32) {
            __m512bh w[R];
#pragma GCC unroll 8
            for (int i = 0; i < R; ++i) w[i] = (__m512bh)_mm512_loadu_si512(rows + (r + i) * kDim + j);
#pragma GCC unroll 8
            for (int q = 0; q < N; ++q)
#pragma GCC unroll 3
                for (int p = 0; p < Parts; ++p) {
                    const __m512bh v = (__m512bh)_mm512_loadu_si512(parts + (q * 3 + p) * kDim + j);
#pragma GCC unroll 8
                    for (int i = 0; i < R; ++i) sum[i][q] = _mm512_dpbf16_ps(sum[i][q], w[i], v);
                }
        }
#pragma GCC unroll 8
        for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
            for (int q = 0; q < N; ++q) out[q * 24 + r + i] = _mm512_reduce_add_ps(sum[i][q]);
    }
}

// ---- timing ----

struct Case {
    std::string what, way, size;
    int64_t classes;            // of a pass
    std::function<void()> pass;
    double error;               // against plain arithmetic; of rows: in units of 2^-24 |row| |x|
    std::vector<double> times = {};
};

using Block = void (*)(const uint8_t*, const int8_t*, int32_t*);
using Rows = void (*)(const uint16_t*, const float*, const uint16_t*, float*);

void add_scans(std::vector<Case>& cases, const std::vector<uint8_t>& codes, const std::vector<int8_t>& planes) {
    struct Kind {
        int bits;
        const char* way;
        Block block;
    };
    const Kind kinds[] = {{8, "as it is", scan_block<8, Way::shift>}, {6, "VBMI", scan_packed<6>},
                          {4, "shift, and", scan_block<4, Way::shift>}, {4, "VBMI", scan_block<4, Way::multishift>}, {4, "GFNI", scan_block<4, Way::affine>},
                          {3, "VBMI", scan_packed<3>},
                          {2, "shift, and", scan_block<2, Way::shift>}, {2, "VBMI", scan_block<2, Way::multishift>}, {2, "GFNI", scan_block<2, Way::affine>},
                          {1, "shift, and", scan_block<1, Way::shift>}, {1, "VBMI", scan_block<1, Way::multishift>}, {1, "GFNI", scan_block<1, Way::affine>}};
    for (const Kind& kind : kinds)
        for (const bool small : {true, false}) {
            const int64_t bytes = 64 * kDim * kind.bits / 8, blocks = (small ? 512 << 10 : static_cast<int64_t>(codes.size()) - 8192) / bytes;
            std::vector<int32_t> got(128);
            kind.block(codes.data(), planes.data(), got.data());
            double error = 0;
            for (int64_t c = 0; c < 64; ++c)
                for (int plane = 0; plane < 2; ++plane) {
                    int64_t sum = 0;
                    for (int64_t j = 0; j < kQuads; ++j)
                        for (int i = 0; i < 4; ++i) sum += code_at(codes.data(), kind.bits, j, c, i) * planes[j * 8 + plane * 4 + i];
                    error = std::max(error, std::fabs(static_cast<double>(sum - got[c / 16 * 32 + plane * 16 + c % 16])));
                }
            cases.push_back({std::to_string(kind.bits) + " bits", kind.way, small ? "512 KiB" : "memory", blocks * 64, [=, &codes, &planes] {
                int32_t out[128];
                for (int64_t b = 0; b < blocks; ++b) {
                    kind.block(codes.data() + b * bytes, planes.data(), out);
                    __asm__ volatile("" : : "r"(out) : "memory");
                }
            }, error});
        }
}

void add_rows(std::vector<Case>& cases, const std::vector<uint16_t>& rows, const std::vector<float>& x, const std::vector<uint16_t>& parts) {
    struct Kind {
        int n;
        const char* way;
        Rows rows;
    };
    const Kind kinds[] = {{1, "widened", rows_widened<1>}, {1, "bf16, x in 3 parts", rows_bf16<1, 3>}, {1, "bf16, x rounded", rows_bf16<1, 1>},
                          {8, "widened", rows_widened<8>}, {8, "bf16, x in 3 parts", rows_bf16<8, 3>}, {8, "bf16, x rounded", rows_bf16<8, 1>}};
    for (const Kind& kind : kinds)
        for (const bool small : {true, false}) {
            const int64_t count = (small ? 512 << 9 : static_cast<int64_t>(rows.size())) / kDim / 24 * 24;
            std::vector<float> got(24 * 8);
            kind.rows(rows.data(), x.data(), parts.data(), got.data());
            double error = 0;
            for (int q = 0; q < kind.n; ++q)
                for (int64_t r = 0; r < 24; ++r) {
                    long double sum = 0, a = 0, b = 0;
                    for (int64_t j = 0; j < kDim; ++j) {
                        const long double w = widened(rows[r * kDim + j]), v = x[q * kDim + j];
                        sum += w * v, a += w * w, b += v * v;
                    }
                    error = std::max(error, static_cast<double>(std::fabs(sum - got[q * 24 + r]) / (0x1p-24L * std::sqrt(a * b))));
                }
            cases.push_back({std::to_string(kind.n) + (kind.n == 1 ? " query" : " queries"), kind.way, small ? "512 KiB" : "memory", count, [=, &rows, &x, &parts] {
                float out[24 * 8];
                for (int64_t r = 0; r < count; r += 24) {
                    kind.rows(rows.data() + r * kDim, x.data(), parts.data(), out);
                    __asm__ volatile("" : : "r"(out) : "memory");
                }
            }, error});
        }
}

}  // namespace

int main(int count, char** arguments) {
    const int rounds = count > 1 ? std::atoi(arguments[1]) : 15;
    std::mt19937_64 random(1);
    std::vector<uint8_t> codes(96 << 20);
    for (size_t i = 0; i < codes.size(); i += 8) {
        const uint64_t some = random();
        std::memcpy(&codes[i], &some, 8);
    }
    std::vector<int8_t> planes(kQuads * 8);
    for (int8_t& p : planes) p = static_cast<int8_t>(static_cast<int>(random() % 255) - 127);
    std::vector<uint16_t> rows(48 << 20), parts(8 * 3 * kDim);
    std::vector<float> x(8 * kDim);
    std::normal_distribution<float> normal;
    for (float& v : x) v = normal(random);
    for (int q = 0; q < 8; ++q)
        for (int64_t j = 0; j < kDim; ++j) {
            float left = x[q * kDim + j];
            for (int p = 0; p < 3; ++p) parts[(q * 3 + p) * kDim + j] = rounded(left), left -= widened(parts[(q * 3 + p) * kDim + j]);
        }
    for (uint16_t& w : rows) w = static_cast<uint16_t>((random() & 0x8000) | (0x3C00 + random() % 0x400));
    std::vector<Case> cases;
    add_scans(cases, codes, planes);
    add_rows(cases, rows, x, parts);
    for (int round = 0; round < rounds; ++round)
        for (Case& one : cases) {
            const int times = static_cast<int>(std::max<int64_t>(1, 40000 / one.classes));
            const auto start = std::chrono::steady_clock::now();
            for (int i = 0; i < times; ++i) one.pass();
            const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
            one.times.push_back(took.count() / static_cast<double>(times * one.classes));
        }
    for (Case& one : cases) {
        std::sort(one.times.begin(), one.times.end());
        std::printf("%s;%s;%s;%.3f;%.3f;%.3g\n", one.what.c_str(), one.way.c_str(), one.size.c_str(), one.times[one.times.size() / 2], one.times.front(), one.error);
    }
}
