// A query as the levels want it: x = (hidden - mean) @ rotation, coded in two int8 planes, and its half of every radius.
#include <algorithm>

#include "kernels/lanes.h"
#include "runtime/pool.h"

namespace headlong {
namespace {

constexpr int kMostPeaks = 32;

float up(double x) {
    float f = static_cast<float>(x);
    return static_cast<double>(f) < x ? std::nextafterf(f, std::numeric_limits<float>::infinity()) : f;
}

// One number of all, four side by side: each waits for its last.
template <typename Take, typename Join>
double joined(int64_t start, int64_t stop, const Take& take, const Join& join) {
    double each[4] = {0, 0, 0, 0};
    int64_t j = start;
    for (; j + 4 <= stop; j += 4)
        for (int s = 0; s < 4; ++s) each[s] = join(each[s], take(j + s));
    for (; j < stop; ++j) each[0] = join(each[0], take(j));
    return join(join(each[0], each[1]), join(each[2], each[3]));
}

template <typename Take>
double sum_of(int64_t start, int64_t stop, const Take& take) {
    return joined(start, stop, take, [](double a, double b) { return a + b; });
}

double square_sum(const double* x, int64_t start, int64_t stop) {
    return sum_of(start, stop, [=](int64_t j) { return x[j] * x[j]; });
}

// The two halves of a "rest" and "peaks" pair: see plan.Term.
void split_peaks(const std::vector<double>& x, int64_t start, int64_t stop, double* rest, double* peaks) {
    const int64_t n = stop - start, most = std::min<int64_t>(kMostPeaks, (n + 3) / 4);
    std::vector<double> size(n);
    double total = 0;
    for (int64_t j = 0; j < n; ++j) {
        size[j] = std::fabs(x[start + j]);
        total += size[j] * size[j];
    }
    std::partial_sort(size.begin(), size.begin() + most, size.end(), std::greater<double>());
    const double weight = std::sqrt(static_cast<double>(n) / 3);
    double square = total, sum = 0, least = kInf;
    for (int64_t m = 0; m <= most; ++m) {
        // The difference of squares is off by roundings of the total: add more than they can be.
        double norm_left = m == n ? 0.0 : std::sqrt(std::max(0.0, square) + 1e-11 * total);
        if (sum + weight * norm_left < least) {
            least = sum + weight * norm_left;
            *rest = norm_left;
            *peaks = sum;
        }
        if (m < most) {
            square -= size[m] * size[m];
            sum += size[m];
        }
    }
}

struct Coded {
    float step;
    int32_t offset[2];
};

// x[start:stop] as step * (256 * high + low); adds (x - x^)^2 to `lost`. write(j, high, low) stores a coordinate.
template <typename Write>
Coded code(const std::vector<double>& x, const Segment& seg, std::vector<double>& lost, const Write& write) {
    const int64_t start = seg.start, stop = seg.stop;
    const double most = joined(start, stop, [&](int64_t j) { return std::fabs(x[j]); }, [](double a, double b) { return a < b ? b : a; });
    const float step = up(most / 32512.0);
    const double inverse = step > 0 && std::isfinite(step) ? 1.0 / step : 0;
    int64_t sum[2] = {0, 0};
    for (int64_t j = start; j < stop; ++j) {
        int whole = static_cast<int>(std::lrint(std::min(32512.0, std::max(-32512.0, x[j] * inverse))));
        int high = (whole + 128) >> 8, low = whole - high * 256;
        write(j - start, static_cast<int8_t>(high), static_cast<int8_t>(low));
        sum[0] += high;
        sum[1] += low;
        double gap = x[j] - static_cast<double>(step) * whole;
        lost[j] = std::max(lost[j], gap * gap);
    }
    return {step, {static_cast<int32_t>(seg.middle() * sum[0]), static_cast<int32_t>(seg.middle() * sum[1])}};
}

// x[start:stop] as step * whole, one int8 plane.
template <typename Write>
float code_once(const double* x, int64_t start, int64_t stop, double* lost, const Write& write) {
    double most = 0;
    for (int64_t j = start; j < stop; ++j) most = std::max(most, std::fabs(x[j]));
    const float step = up(most / 127.0);
    const double inverse = step > 0 && std::isfinite(step) ? 1.0 / step : 0;
    for (int64_t j = start; j < stop; ++j) {
        const int whole = static_cast<int>(std::lrint(std::min(127.0, std::max(-127.0, x[j] * inverse))));
        write(j - start, static_cast<int8_t>(whole));
        const double gap = x[j] - static_cast<double>(step) * whole;
        lost[j] = std::max(lost[j], gap * gap);
    }
    return step;
}

// The query's half of a radius, and of the one that the bet on the normaliser takes where that is another.
void set_radius(const std::vector<Term>& terms, const std::vector<const float*>& slack, const std::vector<double>& x,
                const std::vector<double>& lost, double hidden, Radius& radius, Radius* likely = nullptr) {
    std::vector<double> sum(slack.size(), 0.0), narrow(slack.size(), 0.0);
    double rest = 0, peaks = 0;
    int64_t start = -1, stop = -1;  // of the pair that was split last
    for (const Term& term : terms) {
        double value = 1;
        if (term.kind == TermKind::norm) value = std::sqrt(square_sum(x.data(), term.start, term.stop));
        if (term.kind == TermKind::hidden) value = hidden;
        if (term.kind == TermKind::quantised)
            value = std::sqrt(sum_of(term.start, term.stop, [&](int64_t j) { return lost[j]; }));
        if (term.kind == TermKind::rest || term.kind == TermKind::peaks) {
            if (term.start != start || term.stop != stop) {
                rest = peaks = 0;
                split_peaks(x, start = term.start, stop = term.stop, &rest, &peaks);
            }
            value = term.kind == TermKind::rest ? rest : peaks;
        }
        sum[term.row] += value * term.factor;
        narrow[term.row] += value * term.factor * term.likely;
    }
    const auto set = [&](Radius& to, const std::vector<double>& sums) {
        to.terms = static_cast<int>(slack.size());
        for (size_t r = 0; r < slack.size(); ++r) {
            to.slack[r] = slack[r];
            to.term[r] = up(sums[r] * (1 + 0x1p-18));
        }
    };
    set(radius, sum);
    if (likely != nullptr) set(*likely, narrow);
}

}  // namespace

void Executor::prepare(const Source& source, Look& look) const {
    const int n = static_cast<int>(look.rows.size());
    Prepared& to = look.prepared;
    to.n = n;
    to.add.assign(n, 0.f);
    to.radius.assign(n, Radius{});
    to.likely.assign(n, Radius{});
    to.deeper.resize(source.rotated ? n * deeper.size() : 0);
    look.parts.resize(static_cast<size_t>(n) * look.threads);
    look.dear = std::vector<std::atomic<int>>(n);
    look.bytes.assign(n, 0);
    if (source.codes != nullptr) {
        to.planes.assign(source.quads * 8 * n, 0);
        to.offset.resize(source.segments.size() * n * 2);
        to.step.resize(source.segments.size() * n);
    } else {
        to.padded = n > kRowQueries ? (n + 15) / 16 * 16 : 0;
        to.x.assign(source.width * std::max(n, to.padded), 0.f);
    }
    const std::vector<double> turned = turn(source, look);
    const int64_t width = turned.empty() ? 0 : static_cast<int64_t>(turned.size()) / n;
    Turns<int> next;
    run_parallel(std::min(look.threads, n), [&](int) {
        for (int q = next++; q < n; q = next++) prepare_one(source, q, turned.data() + q * width, look);
    });
    if (n != 1 || source.codes == nullptr || kernels->scan_one == nullptr) return;
    for (size_t s = 0; s < source.segments.size(); ++s) {
        const Segment& seg = source.segments[s];
        to.strips.push_back({seg.first_word, seg.words, seg.bits, &to.planes[seg.first_quad * 8],
                             {to.offset[2 * s], to.offset[2 * s + 1]}, to.step[s], source.scale + s * padded});
    }
}

// x = (hidden - mean) @ rotation of all queries, its columns shared out among the threads; empty without a rotation.
std::vector<double> Executor::turn(const Source& source, const Look& look) const {
    if (!source.rotated || rotation == nullptr) return {};
    const int64_t n = static_cast<int64_t>(look.rows.size());
    Scratch<double> x(n * dim);
    std::copy_n(look.hidden.data(), n * dim, x.data());
    std::vector<double> turned(n * rotated_dim);
    if (mean != nullptr)
        for (int64_t i = 0; i < n * dim; ++i) x[i] -= mean[i % dim];
    const int64_t piece = 128, pieces = (rotated_dim + piece - 1) / piece;
    Turns<int64_t> next;
    run_parallel(n * rotated_dim * dim > 65536 ? look.threads : 1, [&](int) {
        for (int64_t p = next++; p < pieces; p = next++)
            kernels->rotate(rotation, rotation_kind, rotated_dim, dim, p * piece, std::min(piece, rotated_dim - p * piece),
                            x.data(), dim, static_cast<int>(n), turned.data() + p * piece, rotated_dim);
    });
    return turned;
}

void Executor::prepare_one(const Source& source, int q, const double* turned, Look& look) const {
    Prepared& to = look.prepared;
    const double* h = &look.hidden[q * dim];
    std::vector<double> x(h, h + dim);
    Radius& radius = to.radius[q];
    double norm = 0;
    if (source.rotated) {
        if (mean != nullptr)
            for (int64_t j = 0; j < dim; ++j) x[j] -= mean[j];
        norm = std::sqrt(square_sum(x.data(), 0, dim));
        if (rotation != nullptr) x.assign(turned, turned + rotated_dim);
        if (centre != nullptr) {
            const double sum = sum_of(0, dim, [&](int64_t j) { return h[j] * centre[j]; });
            to.add[q] = static_cast<float>(sum);
            radius.constant = up(std::fabs(sum) * 0x1p-20);
        }
    }
    std::vector<double> lost(x.size(), 0.0);
    if (source.codes != nullptr) {
        for (size_t s = 0; s < source.segments.size(); ++s) {
            const Segment& seg = source.segments[s];
            int8_t* plane = to.planes.data() + seg.first_quad * 8 * to.n + q * seg.quads * 8;
            const Coded coded = code(x, seg, lost, [&](int64_t j, int8_t high, int8_t low) {
                plane[j / 4 * 8 + j % 4] = high;
                plane[j / 4 * 8 + j % 4 + 4] = low;
            });
            to.step[s * to.n + q] = coded.step;
            std::copy_n(coded.offset, 2, &to.offset[(s * to.n + q) * 2]);
        }
    } else {
        for (int64_t j = 0; j < source.width; ++j)
            to.x[to.padded == 0 ? q * source.width + j : j * to.padded + q] = static_cast<float>(x[j]);
    }
    if (source.rotated) {
        for (size_t level = 0; level < deeper.size(); ++level) {
            const Deeper& from = deeper[level];
            DeeperQuery& query = to.deeper[q * deeper.size() + level];
            query.high.assign(from.halves + 64, 0);
            query.low.assign(from.halves + 64, 0);
            for (const Segment& seg : from.segments) {
                const int shift = seg.bits == 8 ? 2 : seg.bits == 4 ? 3 : seg.bits == 2 ? 4 : 5;  // 2^shift coordinates share a word
                const Coded coded = code(x, seg, lost, [&](int64_t j, int8_t high, int8_t low) {
                    const int64_t group = (j & ((int64_t{1} << shift) - 1)) / 4;
                    const int64_t at = seg.first_quad + group * seg.words + (j >> shift) * 4 + j % 4;
                    query.high[at] = high;
                    query.low[at] = low;
                });
                query.step.push_back(coded.step);
                query.offset.insert(query.offset.end(), coded.offset, coded.offset + 2);
            }
            set_radius(from.terms, from.slack, x, lost, norm, query.radius);
        }
    }
    // Every product that float32 flushes towards zero is far below this.
    const float constant = radius.constant + 0x1p-100f;
    set_radius(source.terms, source.slack, x, lost, norm, radius, &to.likely[q]);
    radius.constant = to.likely[q].constant = constant;
    for (size_t level = 0; level < to.deeper.size() / std::max(1, to.n); ++level)
        to.deeper[q * deeper.size() + level].radius.constant = constant;
}

// Where the numbers of one level of all queries lie, one query in each lane.
void Executor::prepare_lanes(Crowd& crowd) const {
    Look& look = crowd.look;
    const int n = crowd.n, lanes = crowd.lanes;
    const size_t closer = deeper.empty() ? 0 : deeper[0].segments.size(), passes = preview.segments.size() + closer;
    int64_t quads = 0;
    for (const Segment& seg : preview.segments) quads += seg.words * 8 / seg.bits;
    for (size_t s = 0; s < closer; ++s) quads += deeper[0].segments[s].words / 4 * 8 / deeper[0].segments[s].bits;
    crowd.planes.resize(quads * lanes * 4);
    crowd.start.resize(passes * lanes);
    crowd.step.resize(passes * lanes);
    std::fill_n(crowd.planes.data(), crowd.planes.size(), int8_t{0});
    std::fill_n(crowd.start.data(), crowd.start.size(), 0);
    std::fill_n(crowd.step.data(), crowd.step.size(), 0.f);
    int8_t* planes = crowd.planes.data();
    const auto add = [&](std::vector<LanePass>& to, int64_t at, int64_t words, int bits, const float* scale) {
        const size_t p = crowd.first.size() + crowd.further.size();
        to.push_back({at, words, bits, planes, crowd.start.data() + p * lanes, crowd.step.data() + p * lanes, scale});
        planes += words * 8 / bits * lanes * 4;
    };
    for (size_t s = 0; s < preview.segments.size(); ++s)
        add(crowd.first, preview.segments[s].first_word * 256, preview.segments[s].words, preview.segments[s].bits, preview.scale + s * padded);
    for (size_t s = 0; s < closer; ++s)
        add(crowd.further, deeper[0].segments[s].first_word, deeper[0].segments[s].words / 4, deeper[0].segments[s].bits, deeper[0].scale + s * padded);
    const size_t wide = preview.slack.size(), narrow = closer == 0 ? 0 : deeper[0].slack.size();
    crowd.terms.resize((wide + narrow + 3) * lanes);  // and a constant, what is added to estimates, zeros
    std::fill_n(crowd.terms.data(), crowd.terms.size(), 0.f);
    const auto lay = [&](LaneRadius& radius, const std::vector<const float*>& slack, size_t first) {
        radius.terms = static_cast<int>(slack.size());
        radius.constant = crowd.terms.data();
        for (size_t r = 0; r < slack.size(); ++r) {
            radius.slack[r] = slack[r];
            radius.term[r] = crowd.terms.data() + (first + r) * lanes;
        }
    };
    lay(crowd.wide, preview.slack, 2);
    if (closer > 0) lay(crowd.closer_radius, deeper[0].slack, 2 + wide);
    look.prepared.n = n;
    look.prepared.add.assign(n, 0.f);
    look.prepared.deeper.resize(n * deeper.size());
    const std::vector<double> turned = turn(preview, look);
    Turns<int> next;
    run_parallel(std::min(crowd.threads, n), [&](int) {
        for (int q = next++; q < n; q = next++) prepare_lane(crowd, q, turned.data() + q * rotated_dim);
    });
}

void Executor::prepare_lane(Crowd& crowd, int q, const double* turned) const {
    const double* h = &crowd.look.hidden[q * dim];
    const int64_t lanes = crowd.lanes;
    double sum = 0;
    const double norm = sum_of(0, dim, [&](int64_t j) { return mean == nullptr ? h[j] * h[j] : (h[j] - mean[j]) * (h[j] - mean[j]); });
    if (centre != nullptr) sum = sum_of(0, dim, [&](int64_t j) { return h[j] * centre[j]; });
    crowd.look.prepared.add[q] = crowd.terms[lanes + q] = static_cast<float>(sum);
    crowd.terms[q] = up(std::fabs(sum) * 0x1p-20) + 0x1p-100f;
    std::vector<double> x(turned, turned + rotated_dim), lost(rotated_dim, 0.0);
    const auto take = [&](const LanePass& pass, const Segment& seg, int8_t* row) {
        int8_t* plane = crowd.planes.data() + (pass.planes - crowd.planes.data()) + q * 4;
        const int64_t per = 32 / seg.bits;
        int64_t total = 0;
        const float step = code_once(x.data(), seg.start, seg.stop, lost.data(), [&](int64_t j, int8_t whole) {
            plane[j / 4 * lanes * 4 + j % 4] = whole;
            if (row != nullptr) row[j % per / 4 * seg.words + j / per * 4 + j % 4] = whole;
            total += whole;
        });
        crowd.start[pass.start - crowd.start.data() + q] = static_cast<int32_t>(-seg.middle() * total);
        crowd.step[pass.step - crowd.step.data() + q] = step;
        return std::pair<float, int32_t>(step, static_cast<int32_t>(seg.middle() * total));
    };
    for (size_t s = 0; s < crowd.first.size(); ++s) take(crowd.first[s], preview.segments[s], nullptr);
    Radius radius{};
    const auto lay = [&](const LaneRadius& to) {
        for (int r = 0; r < to.terms; ++r) crowd.terms[to.term[r] - crowd.terms.data() + q] = radius.term[r];
    };
    set_radius(preview.terms, preview.slack, x, lost, std::sqrt(norm), radius);
    lay(crowd.wide);
    if (crowd.further.empty()) return;
    const Deeper& from = deeper[0];
    DeeperQuery& query = crowd.look.prepared.deeper[q];
    query.high.assign(from.halves + 64, 0);
    query.low.assign(from.halves + 64, 0);
    for (size_t s = 0; s < from.segments.size(); ++s) {  // the high half is 256 times what it is for two planes
        const auto [step, offset] = take(crowd.further[s], from.segments[s], &query.high[from.segments[s].first_quad]);
        query.step.push_back(step / 256);
        query.offset.insert(query.offset.end(), {offset, 0});
    }
    set_radius(from.terms, from.slack, x, lost, std::sqrt(norm), radius);
    lay(crowd.closer_radius);
    query.radius = radius;
    query.radius.constant = crowd.terms[q];
}

}  // namespace headlong
