// A query in the codes' coordinates: rotated, and in whole steps that are drawn at random so that their mean is exact.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "codes/draw_points.h"
#include "codes/rotated.h"
#include "executor/verbs.h"
#include "runtime/shared_work.h"

namespace headlong {
namespace {

constexpr double kUp = 1 + 0x1p-18;  // covers the roundings of a radius in float32
constexpr int64_t kRotatedAtOnce = 32, kPieces = 4;  // queries, and pieces of a thread
constexpr double kShortest = 1e-12, kLongest = 1e12;  // lengths whose products float32 holds
constexpr float kLeastFloat = 0x1p-100f;  // no bound is less: numbers that float32 flushes are far below

// A bound in float32, no less.
float rounded_up(double bound) { return std::max(kLeastFloat, static_cast<float>(bound * kUp)); }

// int8 numbers whose mean is x / step, from noise that belongs to this query, this plane and this coordinate. Returns the step.
float round_at_random(const float* x, int64_t n, uint64_t key, int8_t* to, int32_t* sum) {
    float top = 0;
    for (int64_t j = 0; j < n; ++j) top = std::max(top, std::fabs(x[j]));
    const float step = top / 127.f;
    *sum = 0;
    if (!(step > 0x1p-120f)) {
        std::fill_n(to, n, int8_t{0});
        return 0;
    }
    for (int64_t j = 0; j < n; j += 4) {
        uint64_t noise = mix(key + static_cast<uint64_t>(j));
        for (int64_t i = j; i < std::min(n, j + 4); ++i, noise >>= 16) {
            const float scaled = x[i] / step, low = std::floor(scaled);
            const float up = (static_cast<float>(noise & 0xFFFF) + 0.5f) * 0x1p-16f < scaled - low ? 1.f : 0.f;
            to[i] = static_cast<int8_t>(std::min(127.f, std::max(-127.f, low + up)));
            *sum += to[i];
        }
    }
    return step;
}

void code_query(const Codes& codes, const float* x, double length, uint64_t key, CodeQuery& query, int8_t* to, int32_t* sums, float* steps) {
    query.constant = codes.lost * length + query.summed;
    double estimated = codes.most_base;
    query.segments.resize(codes.segments.size());
    std::vector<float> rest;
    for (size_t s = 0; s < codes.segments.size(); ++s) {
        const CodeSegment& segment = codes.segments[s];
        const int64_t n = codes.layout.segment[s].groups * 32;
        const float* own = x + segment.column;
        rest.assign(own, own + n);
        for (int plane = 0; plane < segment.planes; ++plane, to += n, ++sums, ++steps) {
            *steps = round_at_random(rest.data(), n, mix(key ^ (static_cast<uint64_t>(s) << 8 | plane)), to, sums);
            for (int64_t j = 0; j < n; ++j) rest[j] = std::fma(-*steps, static_cast<float>(to[j]), rest[j]);
        }
        double square = 0, left = 0;
        for (int64_t j = 0; j < n; ++j) square += static_cast<double>(own[j]) * own[j], left += static_cast<double>(rest[j]) * rest[j];
        const double off = segment.x_error * length;
        const double norm = std::sqrt(square) + off, step = steps[-1];
        query.segments[s] = {norm, step, std::sqrt(left) + off + 0x1p-22 * norm};
        query.constant += norm * segment.row_error + off * segment.most;
        estimated += (norm + query.segments[s].loss) * segment.most;
        query.usable &= norm * segment.most < kLongest && norm < kLongest && (norm == 0 || norm > kShortest);
    }
    query.constant += 0x1p-21 * (2 * codes.layout.segments + 4) * estimated;
    query.usable &= query.constant < kLongest;
}

CodeGroup group_of(const Codes& codes, const PreparedCodes& all, int64_t first, int n, int lanes) {
    CodeGroup group;
    group.first = first, group.n = n, group.lanes = lanes;
    group.x.assign(all.columns * lanes, 0);
    group.sums.assign(all.passes * lanes, 0);
    group.steps.assign(all.passes * lanes, 0.f);
    int64_t at = 0, pass = 0;
    for (int s = 0; s < codes.layout.segments; ++s)
        for (int plane = 0; plane < codes.segments[s].planes; ++plane, ++pass) {
            const int64_t columns = codes.layout.segment[s].groups * 32;
            int8_t* to = &group.x[at * lanes];
            for (int q = 0; q < n; ++q) {
                const int8_t* from = &all.x[(first + q) * all.columns + at];
                for (int64_t quad = 0; quad < columns / 4; ++quad) std::memcpy(to + (quad * lanes + q) * 4, from + quad * 4, 4);
                group.sums[pass * lanes + q] = all.sums[(first + q) * all.passes + pass];
                group.steps[pass * lanes + q] = all.steps[(first + q) * all.passes + pass];
            }
            group.passes.push_back({s, to, &group.sums[pass * lanes], &group.steps[pass * lanes]});
            at += columns;
        }
    return group;
}

}  // namespace

CodeGroup PreparedCodes::alone(const Codes& codes, int64_t query) const { return group_of(codes, *this, query, 1, 1); }

PreparedCodes prepare_codes(const Codes& codes, const double* hidden, int64_t n, uint64_t seed, int threads) {
    const int64_t dim = codes.rows->dim, width = codes.width;
    Scratch<float> d(n * dim), x(n * width);
    PreparedCodes all;
    all.queries.resize(n);
    for (const CodeSegment& segment : codes.segments) {
        all.passes += segment.planes;
        all.columns += segment.planes * codes.layout.segment[&segment - codes.segments.data()].groups * 32;
    }
    all.x.resize(n * all.columns);
    all.sums.resize(n * all.passes);
    all.steps.resize(n * all.passes);
    std::vector<double> lengths(n);
    for (int64_t q = 0; q < n; ++q) {
        double square = 0, whole = 0, add = 0, size = 0;
        for (int64_t j = 0; j < dim; ++j) {
            const double own = hidden[q * dim + j], one = own - codes.mean[j], part = codes.centre[j] * own;
            d[q * dim + j] = static_cast<float>(one);
            square += one * one;
            whole += own * own;
            add += part;
            size += std::fabs(part);
        }
        lengths[q] = std::sqrt(square);
        CodeQuery& query = all.queries[q];
        query.hidden = hidden + q * dim;
        query.add = add;
        query.summed = static_cast<double>(dim + 16) * 0x1p-52 * (size + codes.rows->most_norm * (std::sqrt(whole) + lengths[q]) + codes.most_base);
        query.usable = lengths[q] < kLongest && std::isfinite(add);
    }
    // Some panels for some queries: a panel that was read serves all of them, and every thread has some pieces.
    const int64_t by = std::min<int64_t>(n, kRotatedAtOnce), chunks = (n + by - 1) / by, panels = width / kPanel;
    const int64_t parts = std::max<int64_t>(1, std::min(panels, (n < 4 ? 1 : kPieces) * threads / chunks)), pieces = chunks * parts;
    Turns<int64_t> next;
    run_parallel(dim * width * n < (1 << 16) ? 1 : threads, [&](int) {
        for (int64_t piece = next++; piece < pieces; piece = next++) {
            const int64_t q = piece / parts * by, some = std::min(by, n - q), part = piece % parts;
            codes.scan->rotate(codes.rotation, dim, width, panels * part / parts * kPanel, panels * (part + 1) / parts * kPanel, &d[q * dim], some, &x[q * width]);
        }
    });
    next.store(0);
    run_parallel(n < 8 ? 1 : threads, [&](int) {
        for (int64_t q = next++; q < n; q = next++)
            code_query(codes, &x[q * width], lengths[q], key_of(hidden + q * dim, dim, seed), all.queries[q], &all.x[q * all.columns],
                       &all.sums[q * all.passes], &all.steps[q * all.passes]);
    });
    for (int64_t q = 0; q < n; q += kLanes) {
        const int some = static_cast<int>(std::min<int64_t>(kLanes, n - q));
        all.groups.push_back(group_of(codes, all, q, some, some > 4 ? 8 : some > 2 ? 4 : some));
    }
    return all;
}

// Draws are made from a seed and the query's content: the same query has the same answer.
uint64_t key_of(const double* hidden, int64_t dim, uint64_t seed) {
    uint64_t part[4];  // side by side: each waits for its last
    for (uint64_t i = 0; i < 4; ++i) part[i] = seed + i;
    for (int64_t j = 0; j < dim; ++j) {
        uint64_t word;
        std::memcpy(&word, hidden + j, 8);
        part[j % 4] = mix(part[j % 4] ^ word) + 0x9E3779B97F4A7C15u;
    }
    return mix(mix(mix(part[0]) ^ part[1]) ^ part[2]) ^ part[3];
}

double power_near(double x) { return x > 0 && x < kInf ? std::exp2(std::max(-120, std::min(120, std::ilogb(x)))) : 1; }

double kappa_of(double events, double delta) { return delta > 0 ? std::sqrt(2 * std::log(std::max(1.0, events) / delta)) : 0; }

ScanRadii radii_of(const Codes& codes, const CodeQuery* queries, int n, double kappa) {
    ScanRadii all;
    all.squared = kappa > 0;
    all.unit = static_cast<float>(1 / codes.unit);
    for (int q = 0; q < n; ++q) {
        all.constant[q] = rounded_up(queries[q].constant);
        double error[kMostSegments], scale[kMostSegments], largest = 0;
        for (size_t s = 0; s < codes.segments.size(); ++s) {
            const CodeSegment& segment = codes.segments[s];
            const CodeQuery::Segment& own = queries[q].segments[s];
            error[s] = kappa > 0 ? kappa * own.norm / std::sqrt(static_cast<double>(segment.coordinates - 1)) : own.norm;
            scale[s] = (kappa > 0 ? 0.5 * kappa * own.step : own.loss) * segment.code_norm;
            largest = std::max({largest, error[s], scale[s]});
        }
        const double own = power_near(largest);
        all.back[q] = rounded_up(own * codes.unit);
        for (size_t s = 0; s < codes.segments.size(); ++s) {
            const double norm = error[s] / own, step = scale[s] / own;
            all.error[s][q] = static_cast<float>((all.squared ? norm * norm : norm) * kUp);
            all.scale[s][q] = static_cast<float>((all.squared ? step * step : step) * kUp);
        }
    }
    return all;
}

}  // namespace headlong
