// Every row against some queries in float32.
#pragma once

#include <algorithm>

#include "executor/executor.h"
#include "kernels/any_rows.h"
#include "runtime/pool.h"
#include "runtime/scratch.h"
#include "runtime/shared_work.h"

namespace headlong {

constexpr int kScanQueries = 64;        // that share a pass over the rows
constexpr int64_t kMostPieces = 256;    // of the classes: sums are joined piece by piece
constexpr double kSmallScan = 1 << 18;  // bytes times queries below which one thread is done before another wakes

// Rows [vocab][width] and what joins their products.
struct FloatRows {
    const void* rows;
    Kind kind;
    int64_t width;
    const float* base;  // [padded], or null
};

// Runs of chunks whose sums are joined in order: the same whatever the threads.
inline int64_t scan_pieces(const Executor& e) { return std::min(kMostPieces, (e.padded + kChunk - 1) / kChunk); }

// Queries [n][width] as dense_rows takes them.
inline Scratch<float> queries_of(const double* x, int64_t n, int64_t width) {
    const int64_t stride = query_stride(width);
    Scratch<float> out(n * stride);
    for (int64_t q = 0; q < n; ++q) std::fill(std::copy_n(x + q * width, width, out.data() + q * stride), out.data() + (q + 1) * stride, 0.f);
    return out;
}

// visit(thread, piece, first, n, est): est [query][kChunk] of classes first .. first + n - 1, the rows of a piece in order, from one thread.
// x [queries][query_stride(width)]. An estimate is a function of its row and its query alone, whoever else is there.
template <typename Visit>
void scan_rows(const Executor& e, const FloatRows& from, const float* x, int n, int threads, const Visit& visit) {
    const int64_t pieces = scan_pieces(e), chunks = (e.padded + kChunk - 1) / kChunk, bytes = row_bytes(from.kind, from.width);
    const bool small = static_cast<double>(e.vocab * bytes) * n < kSmallScan;
    Turns<int64_t> next;
    run_parallel(small ? 1 : static_cast<int>(std::min<int64_t>(threads, pieces)), [&](int thread) {
        Scratch<float> est(n * kChunk), floats(in_blocks_of_codes(from.kind) ? kBlock * from.width : 0);
        for (auto run = next.run(pieces, threads); run.first < pieces; run = next.run(pieces, threads))
            for (int64_t piece = run.first; piece < run.stop; ++piece)
                for (int64_t chunk = chunks * piece / pieces; chunk < chunks * (piece + 1) / pieces; ++chunk) {
                    check_in();
                    const int64_t first = chunk * kChunk, many = std::min(kChunk, e.padded - first);
                    for (int64_t c = first; c < std::min(first + many, e.vocab); c += kBlock) {
                        const int64_t count = std::min(kBlock, e.vocab - c);
                        const void* rows = static_cast<const char*>(from.rows) + c * bytes;
                        Kind kind = from.kind;
                        if (!floats.empty()) {  // once for all queries
                            for (int64_t r = 0; r < count; ++r)
                                e.kernels->row_floats(static_cast<const char*>(rows) + r * bytes, kind, from.width, floats.data() + r * from.width);
                            rows = floats.data(), kind = Kind::f32;
                        }
                        // The next rows come while these are multiplied with all queries but the first few.
                        const int64_t ahead = n > kRowQueries && c + 2 * kBlock <= e.vocab ? kBlock * bytes / ((n - 1) / kRowQueries) : 0;
                        const char* next = static_cast<const char*>(from.rows) + (c + kBlock) * bytes;
                        for (int q = 0; q < n; q += kRowQueries, next += ahead) {
                            for (int64_t line = 0; line < ahead && q + kRowQueries < n; line += 64) __builtin_prefetch(next + line, 0, 2);
                            e.kernels->dense_rows(rows, kind, from.width, count, x + q * query_stride(from.width), std::min(kRowQueries, n - q), est.data() + q * kChunk + (c - first), kChunk);
                        }
                    }
                    if (from.base != nullptr)
                        for (int q = 0; q < n; ++q)
                            for (int64_t i = 0; i < many; ++i) est[q * kChunk + i] += from.base[first + i];
                    visit(thread, piece, first, many, est.data());
                }
    });
}

// The largest of a query's estimates. Classes that pad or are masked are put at -inf: they are in no sum and reach no threshold.
float largest_estimate(const Executor& e, const Question& question, int64_t row, int64_t first, int64_t n, float* est, bool* finite);

// How far estimates of the rows themselves are off, for a row of length one; a bias joins what `base_error` says.
float radius_of_rows(const Executor& e, const double* hidden);
inline float radii_of_rows(const Executor& e, float term, int64_t first, int64_t n, float* out) {
    return e.kernels->radius(e.norms + first, e.base_error == nullptr ? nullptr : e.base_error + first, term, n, out);
}

}  // namespace headlong
