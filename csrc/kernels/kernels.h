// The grid of kernels: operation x instruction set.
//
// Kernels take plain pointers; they never allocate, start threads or throw. One translation unit per instruction
// set (kernels/portable.cpp, kernels/generic.cpp, kernels/avx2.cpp, kernels/neon.cpp, ...) fills one Kernels table; kernels/level_tables.cpp hands out the table, once.
// Per-class arrays are padded to a multiple of 64 classes, so every `n` below is a multiple of 64.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/stored_radii.h"
#include "kernels/stored_types.h"

namespace headlong {

constexpr int64_t kBlock = 64;     // classes of one interleaved block of codes
constexpr int64_t kReadAhead = 8192;  // bytes: how far ahead codes that are read once, in order, are asked for
constexpr int kRowQueries = 8;     // queries that dense_rows takes at once
constexpr int kTileQueries = 64;   // queries that dense_tile takes at once
constexpr int64_t kRun = 16;       // classes of one sum of split
constexpr int64_t kWide = 32;      // coordinates that dot_block takes at once
constexpr int kTileChunk = 128;    // coordinates accumulated in a register before they join the sum

// ceil(n / kBlock) * kBlock: classes, made up to whole blocks.
constexpr int64_t in_blocks(int64_t n) { return (n + kBlock - 1) / kBlock * kBlock; }

// A product with a row in 32 sums at the least, their sum, and the rounding of x.
constexpr double float_unit(int64_t dim) { return (static_cast<double>(dim) / 32 + 40) * 0x1p-24; }

// What a link lowers to; gss is for losses alone. Their names, in this order, are those of links.py.
enum class LinkForm : int { affine, softcap, table, gss };
constexpr const char* kLinkForms[] = {"affine", "softcap", "table", "gss"};

// An increasing map on logits: a * z + b ; a * tanh(z / a) ; a table, straight between knots, a the steepest slope.
// Cell 0 of a table is what lies below the first knot, cell i what lies above knot i - 1; f = base + slope * (z - knot),
// and the knot of cell 0 lies one step below the first. `slop`: how far float32 can be off the real f, the table's own
// error included.
struct Link {
    LinkForm form;
    float a, b;
    const float* table = nullptr;  // base and slope of cell 0, of cell 1, ...
    float start = 0, step = 1, inverse = 1, cells = 0, slop = 0;  // cells: those between two knots
};

// The first two forms in float64, of `a` and `b` before they were rounded.
inline double linked(LinkForm form, double a, double b, double z) { return form == LinkForm::affine ? z * a + b : a * std::tanh(z / a); }

// Coordinates of one query that have a step of their own, and where a block of codes and the classes' scales hold them.
struct Strip {
    int64_t first_word, words;
    const int8_t* planes;
    int32_t offset[2];
    float step;
    const float* scale;
};

constexpr float kLeastMass = 1e-36f;  // an exponential below it may have been clamped

struct Kernels {
    const char* isa;

    // One block of 64 classes of `words` words of four codes each, n queries of two int8 planes each ([query][quad][plane][4]):
    // est[q * stride + c] = start + scale[c] * step[q] * (256 * (<codes, high> - offset[2q]) + <codes, low> - offset[2q + 1])
    // with start = base[c] + add[q], or what est holds where base is null. An offset is 128 times its plane's sum. sums[c]: what the
    // codes of a class add up to, for tables that say `summed`; null for others.
    void (*scan_u8)(const uint8_t* block, int64_t words, const int32_t* sums, const int8_t* planes,
                    const int32_t* offset, const float* step, const float* scale, const float* base, const float* add, int n, float* est,
                    int64_t stride);

    // out[q * stride + r] = <row r, x_q> in float32, for rows x n <= 64 x kRowQueries.
    void (*dense_rows)(const void* rows, Kind kind, int64_t dim, int64_t count, const float* x, int n, float* out,
                       int64_t stride);

    // out[r * padded + q] = <row r, x_q>, xt = [dim][padded], padded = 16, 32, 48 or 64; scratch holds [count][dim].
    void (*dense_tile)(const void* rows, Kind kind, int64_t dim, int64_t count, const float* xt, int padded,
                       float* scratch, float* out);

    // out[j] = <row ids[j], x>, accumulated in float64; ids == nullptr: rows 0..n-1 of `weight`.
    void (*dot_rows)(const void* weight, Kind kind, int64_t dim, const int64_t* ids, int64_t n, const double* x,
                     double* out);

    // out[j] = <row ids[j], x> in float32, x rounded from float64, off by at most float_unit(dim) * ‖row‖ ‖x‖.
    void (*dot_floats)(const void* weight, Kind kind, int64_t dim, const int32_t* ids, int64_t n, const float* x, float* out);

    // out[q * stride + r] = <row r, x_q> for rows x n, each to the bit what dot_rows says. wide = dim rounded up to a multiple
    // of kWide, x = [n][wide] with zeros beyond dim; scratch holds [count][wide].
    void (*dot_block)(const void* rows, Kind kind, int64_t dim, int64_t count, const double* x, int n, double* scratch,
                      double* out, int64_t stride);

    // sum_i exp(f[i] - shift) in float64, each term within 2^-50 relatively, those below exp(-700) taken for 0.
    double (*sum_exps)(const double* f, int64_t n, double shift);

    // out[q * out_stride + i] = sum_j x[q * x_stride + j] * matrix[j * stride + first + i] for i < n, in float64;
    // the matrix is float32 or float16.
    void (*rotate)(const void* matrix, Kind kind, int64_t stride, int64_t dim, int64_t first, int64_t n, const double* x,
                   int64_t x_stride, int count, double* out, int64_t out_stride);

    // n numbers in float64; returns the size of the largest, infinity where one is not finite. The second writes none.
    double (*widen)(const void* values, Kind kind, int64_t n, double* out);
    double (*largest_double)(const double* values, int64_t n);

    // Writes the radii of n classes and returns the largest.
    float (*radius)(const Radius& r, int64_t first, int64_t n, float* out);

    // Largest est; `finite` is cleared where an estimate is not a number below 1e30.
    float (*largest)(const float* est, int64_t n, bool* finite);

    // The same over the classes whose byte in `mask` is not 0; the estimates of the others become -inf.
    float (*largest_there)(float* est, const uint8_t* mask, int64_t n, bool* finite);

    // low <= sum exp(link(est - rad) * beta - shift), high >= sum exp(link(est + rad) * beta - shift), added up;
    // `most` is the largest radius; high is infinite where a term is beyond exp(87).
    // centre, moved += sum e, sum e * (width of the term's exponent), e = exp(at est).
    struct Sums {
        double low, high, centre, moved;
    };
    void (*interval_sums)(const float* est, const float* rad, int64_t n, float most, Link link, float beta, float shift,
                          Sums* sums);

    // low[i], high[i] = exp(link(est -/+ rad) * beta - shift), clamped to exp(+-88)
    void (*interval_exps)(const float* est, const float* rad, int64_t n, Link link, float beta, float shift,
                          float* low, float* high);

    // middle[i] = exp(link(est) * beta - shift), whose sum is returned; gap[i]: no less than the distance from there to either
    // end of the interval, and more by `slop` of its upper end. 0 and 0 for a class at -inf; n a multiple of 64.
    double (*gaps)(const float* est, const float* rad, int64_t n, Link link, float beta, float shift, float slop,
                   float* middle, float* gap);

    // Adds up what bounds the classes with high < edge together (normaliser/joint_error.cpp), in float32 lanes: masses q, q², q b, b² and
    // the largest q φ(r), which is (high - q - q r) / r², or no more than q (1/2 + r/6 + r²/24) + high r³/120. A class with q < kLeastMass adds its upper end to q b, and
    // nothing else. n a multiple of 64.
    struct Below {
        double mass, square, other, others, worst;
    };
    void (*below)(const float* mass, const float* high, const float* rad, const float* other, int64_t n, float edge, Below* sums);

    // What class i adds to sum_i exp(link(z_i) beta - shift) (keep - [i better than z]) at its estimate, and how much less (more,
    // unless `inside`) it may add. above, below: the floats next to z; cap: no less than a term worse than z. Returns the sum of
    // the former in float64.
    struct Boundary {
        float z, above, below, keep, cap;
        bool inside;
    };
    double (*sides)(const float* est, const float* rad, int64_t n, Link link, float beta, float shift, float slop,
                    const Boundary& at, float* middle, float* gap);

    // Takes the classes with u >= edge out: their ids (first + position) are returned, their u becomes 0. sums[g] is what is
    // left in the g-th run of kRun classes, in float64.
    int64_t (*split)(float* u, int64_t n, float edge, int32_t first, int32_t* ids, double* sums);

    // Values of est - rad above `floor`.
    int64_t (*lower_above)(const float* est, const float* rad, int64_t n, float floor, float* out);

    // Classes with est + rad >= tau: their ids (first + position), estimates and upper ends.
    int64_t (*survivors)(const float* est, const float* rad, int64_t n, float tau, int32_t first, int32_t* ids,
                         float* kept, float* upper);

    // The high words of the Philox4x32-10 noise of classes first .. first + n - 1 (first a multiple of 4).
    void (*noise)(uint64_t seed, uint64_t row, uint32_t draw, int64_t first, int64_t n, uint32_t* out);

    // Which of the words [n] reach `least`, rising; returns how many. n is a multiple of 16.
    int64_t (*high_words)(const uint32_t* words, int64_t n, uint32_t least, int32_t* out);

    // No less than link(z) * beta + gumbel, from the interval of z and the noise's high word, -inf for a class at -inf; the
    // largest is returned.
    float (*gumbel_keys)(const float* est, const float* rad, const uint32_t* words, int64_t n, Link link, float beta, float* upper);

    // Symmetric absmax int8: code[j] = int8_codes(row[j] / scale) of int8_step.inl, written as code + 128;
    // error = ‖row - scale * code‖, peak its largest entry, size = ‖scale * code‖, all rounded up. Row must be finite.
    void (*encode_row)(const void* row, Kind kind, int64_t dim, uint8_t* code, float* scale, float* error, float* peak,
                       float* size);

    // ‖row‖ rounded up; NaN where an entry is not finite.
    float (*row_norm)(const void* row, Kind kind, int64_t dim);

    // A row in blocks of codes as float32 numbers; the kernels above take rows of plain numbers: see kernels/any_rows.h.
    void (*row_floats)(const void* row, Kind kind, int64_t dim, float* out);

    // A block of codes of six bits, as plan.py packs them, as one that scan_u8 takes; `words`, of the latter, is a multiple of four.
    void (*six_bits)(const uint8_t* packed, int64_t words, uint8_t* block);

    // log sum exp(link(z)) of a row; link(z); and the row's gradient in its place: see kernels/common/loss.inl. Any n; gss too:
    // k (z - c) + c - (k - 1) softplus(z - c), a = c, b = k.
    double (*link_lse)(const float* z, int64_t n, const Link& link);
    float (*link_at)(float z, const Link& link);
    void (*link_gradient)(float* z, int64_t n, const Link& link, double lse, int64_t target, float scale,
                          double* const* sums);

    // A plain read of n bytes (for the bandwidth of the machine): the xor of all words.
    uint64_t (*read)(const void* data, int64_t bytes);

    // scan_u8 for one query, strip by strip of each of `blocks` blocks from class `first` on, estimates in registers
    // meanwhile: the same to the last bit. Null: there is nothing better than scan_u8.
    void (*scan_one)(const uint8_t* codes, int64_t words, int64_t first, int64_t blocks, const Strip* strips, int64_t count,
                     const float* base, float add, float* est) = nullptr;

    // Bytes are multiplied by bytes of one kind, signed or not. Where codes are to stay as they are stored, planes are raised by
    // 128, and what that adds to a sum of products is 128 times the sum of the codes: an argument of scan_u8 says so.
    bool summed = false;

    // What the product of a code with both planes of a query costs beside one of dense_tile's, in a batch: measured where
    // the level was (avx512vnni, avx2, generic), else counted in instructions. A plan keeps that of the level it is compiled on, and
    // its queries are looked at or read densely by it.
    double code_product = 0;
};

// The table of a level by name ("portable", "generic", "avx2", ...); "" is the best this CPU has; nullptr if it lacks it.
const Kernels* kernels_for(const char* isa);

// Names of the levels this CPU has, the best last; ends with nullptr.
const char* const* levels();

const Kernels* portable_kernels();  // the reference
const Kernels* generic_kernels();   // the baseline of any processor
const Kernels* avx2_kernels();
const Kernels* avxvnni_kernels();
const Kernels* avx512_kernels();
const Kernels* neon_kernels();  // every AArch64
const Kernels* dotprod_kernels();
const Kernels* i8mm_kernels();

// What the CPU must offer for each, as kernels/cpu.h names it: whatever the file was compiled with.
extern const uint64_t avx2_features, avxvnni_features, avx512_features, dotprod_features, i8mm_features;

}  // namespace headlong
