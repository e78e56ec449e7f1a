// A query as a look wants it: x = hidden @ rotation, coded in two int8 planes, and its half of every radius.
#include <algorithm>

#include "executor/query_codes.h"
#include "runtime/pool.h"
#include "runtime/shared_work.h"
#include "runtime/trace.h"

namespace headlong {
namespace {

// The codes of one query, or its float32 numbers for dense rows.
void code(const Source& source, const std::vector<double>& x, int q, std::vector<double>& lost, Prepared& to) {
    for (size_t s = 0; source.codes != nullptr && s < source.segments.size(); ++s) {
        const Segment& seg = source.segments[s];
        int8_t* plane = to.planes.data() + seg.first_word * 8 * to.n + q * seg.words * 8;
        const Coded coded = two_planes(x, seg, lost, [&](int64_t j, int8_t high, int8_t low) {
            plane[j / 4 * 8 + j % 4] = high;
            plane[j / 4 * 8 + j % 4 + 4] = low;
        });
        to.step[s * to.n + q] = coded.step;
        std::copy_n(coded.offset, 2, &to.offset[(s * to.n + q) * 2]);
    }
    for (int64_t j = 0; source.codes == nullptr && j < source.width; ++j)
        to.x[to.padded == 0 ? q * source.width + j : j * to.padded + q] = static_cast<float>(x[j]);
}

void prepare_one(const Executor& e, const Source& source, int q, const double* rotated, Look& look) {
    Prepared& to = look.prepared;
    const double* h = &look.hidden[q * e.dim];
    std::vector<double> x(h, h + e.dim);
    Radius& radius = to.radius[q];
    if (source.rotated) {
        if (!e.rotation.tiles.empty()) x.assign(rotated, rotated + e.rotated_dim);
        if (e.centre != nullptr) {
            const double sum = sum_of(0, e.dim, [&](int64_t j) { return h[j] * e.centre[j]; });
            to.add[q] = static_cast<float>(sum);
            radius.constant = up(std::fabs(sum) * 0x1p-20);
        }
    }
    std::vector<double> lost(x.size(), 0.0);
    code(source, x, q, lost, to);
    // Every product that float32 flushes towards zero is far below this.
    const float constant = radius.constant + 0x1p-100f;
    const std::vector<double> halves = halves_of(source.terms, x, lost);
    set_radius(source.terms, source.slack, halves, radius);
    radius.constant = constant;
    if (!to.apart.empty()) set_apart(source.terms, source.slack, halves, x, radius, to.apart[q]);
}

}  // namespace

void Rotation::assign(const void* matrix, Kind stored, int64_t rows, int64_t columns_all) {
    kind = stored, dim = rows, width = columns_all;
    tiles.resize(dim * width * item());
    const uint8_t* from = static_cast<const uint8_t*>(matrix);
    uint8_t* to = tiles.data();
    for (int64_t t = 0; t < count(); ++t)
        for (int64_t j = 0; j < dim; ++j, to += columns(t) * item())
            std::copy_n(from + (j * width + t * kTile) * item(), columns(t) * item(), to);
}

// x = hidden @ rotation of all queries, its tiles shared out among the threads; empty without a rotation.
std::vector<double> rotate_queries(const Executor& e, const Source& source, const Look& look) {
    if (!source.rotated || e.rotation.tiles.empty()) return {};
    const int64_t n = static_cast<int64_t>(look.rows.size());
    std::vector<double> rotated(n * e.rotated_dim);
    Turns<int64_t> next;
    run_parallel(n * e.rotated_dim * e.dim > 65536 ? look.threads : 1, [&](int) {
        for (int64_t t = next++; t < e.rotation.count(); t = next++)
            e.kernels->rotate(e.rotation.at(t), e.rotation.kind, e.rotation.columns(t), e.dim, 0, e.rotation.columns(t), look.hidden.data(), e.dim,
                              static_cast<int>(n), rotated.data() + t * Rotation::kTile, e.rotated_dim);
    });
    return rotated;
}

void prepare(const Executor& e, const Source& source, Look& look) {
    const int n = static_cast<int>(look.rows.size());
    Prepared& to = look.prepared;
    to.n = n;
    to.add.assign(n, 0.f);
    to.radius.assign(n, Radius{});
    const auto known = [](const Term& term) { return term.together > 0; };
    to.apart.resize(std::any_of(source.terms.begin(), source.terms.end(), known) ? n : 0);
    look.parts.resize(static_cast<size_t>(n) * look.threads);
    look.finish_densely = std::vector<std::atomic<int>>(n);
    look.wanted.assign(n, 0);
    look.bytes.assign(n, 0);
    if (source.codes != nullptr) {
        to.planes.assign(source.words * 8 * n, 0);
        to.offset.resize(source.segments.size() * n * 2);
        to.step.resize(source.segments.size() * n);
    } else {
        to.padded = n > kRowQueries ? (n + 15) / 16 * 16 : 0;
        to.x.assign(source.width * std::max(n, to.padded), 0.f);
    }
    mark("set-up");
    const std::vector<double> rotated = rotate_queries(e, source, look);
    mark("rotation");
    const int64_t width = rotated.empty() ? 0 : static_cast<int64_t>(rotated.size()) / n;
    Turns<int> next;
    run_parallel(std::min(look.threads, n), [&](int) {
        for (int q = next++; q < n; q = next++) prepare_one(e, source, q, rotated.data() + q * width, look);
    });
    mark("codes of the query");
    if (n != 1 || source.codes == nullptr || source.six_bits || e.kernels->scan_one == nullptr) return;
    for (size_t s = 0; s < source.segments.size(); ++s) {
        const Segment& seg = source.segments[s];
        to.strips.push_back({seg.first_word, seg.words, &to.planes[seg.first_word * 8], {to.offset[2 * s], to.offset[2 * s + 1]}, to.step[s],
                             source.scale + s * e.padded});
    }
}

}  // namespace headlong
