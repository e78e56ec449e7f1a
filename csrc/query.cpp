// Looking at all classes: queries are prepared, level 0 (or the dense rows) is read once for a block of them, and every
// thread keeps, per query, the interval sums of the normaliser and the classes whose upper end reaches the threshold.
#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include "executor.h"
#include "pool.h"

namespace headlong {
namespace {

constexpr int kMostPeaks = 32;
constexpr int64_t kKeptBytes = 8 << 20;  // estimates are kept where they stay in the cache
constexpr int64_t kWarmup = 2048;        // classes a thread sees before it may call a query dear

float up(double x) {
    float f = static_cast<float>(x);
    return static_cast<double>(f) < x ? std::nextafterf(f, std::numeric_limits<float>::infinity()) : f;
}

double norm(const std::vector<double>& x, int64_t start, int64_t stop) {
    double sum = 0;
    for (int64_t j = start; j < stop; ++j) sum += x[j] * x[j];
    return std::sqrt(sum);
}

// The two halves of a "rest" and "peaks" pair: see plan.Term.
void split_peaks(const std::vector<double>& x, int64_t start, int64_t stop, double* rest, double* peaks) {
    const int64_t n = stop - start, most = std::min<int64_t>(kMostPeaks, n);
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

// Every eighth chunk first: a threshold from all over the classes, before most of them are read.
std::vector<int64_t> spread(int64_t chunks) {
    std::vector<int64_t> order;
    order.reserve(chunks);
    for (int64_t c = 0; c < chunks; c += 8) order.push_back(c);
    for (int64_t c = 0; c < chunks; ++c)
        if (c % 8 != 0) order.push_back(c);
    return order;
}

void raise(std::atomic<float>& threshold, float value) {
    float now = threshold.load(std::memory_order_relaxed);
    while (value > now && !threshold.compare_exchange_weak(now, value, std::memory_order_relaxed)) {
    }
}

}  // namespace

void Executor::run(const double* hidden, const std::vector<int64_t>& rows, const Question& question, bool dense_only,
                   const Resolve& resolve, const Finish& finish, std::vector<Answer>& answers) const {
    const bool use_preview = has_preview && !dense_only;
    const Source& source = use_preview ? preview : dense;
    const int64_t affordable = std::max<int64_t>(1, kKeptBytes / (padded * 4));
    const bool keep = question.keep || static_cast<int64_t>(rows.size()) <= affordable || keeping_.load() > 0;
    const int64_t step = keep ? std::min<int64_t>(kBlockQueries, affordable) : kBlockQueries;
    std::vector<int64_t> kept_later, dear;
    for (size_t start = 0; start < rows.size(); start += step) {
        Look look;
        look.source = &source;
        look.rows.assign(rows.begin() + start, rows.begin() + std::min(rows.size(), start + static_cast<size_t>(step)));
        const int n = static_cast<int>(look.rows.size());
        look.hidden.resize(n * dim);
        for (int q = 0; q < n; ++q) std::memcpy(&look.hidden[q * dim], hidden + look.rows[q] * dim, sizeof(double) * dim);
        look.threads = question.threads;
        if (keep) look.est.resize(n * padded);
        prepare(source, look);
        look_at_all(look, question);
        std::vector<Status> status(n, Status::dear);
        auto resolve_one = [&](int q, int threads) {
            Answer& answer = answers[look.rows[q]];
            answer.bytes += look.bytes[q];
            if (look.dear[q].load() == 0) status[q] = resolve(look, q, threads, answer);
        };
        if (n == 1) {
            resolve_one(0, question.threads);
        } else {
            std::atomic<int> next{0};
            run_parallel(std::min(question.threads, n), [&](int) {
                for (int q = next++; q < n; q = next++) resolve_one(q, 1);
            });
        }
        int came_back = 0;
        for (int q = 0; q < n; ++q) {
            if (status[q] == Status::keep) kept_later.push_back(look.rows[q]), ++came_back;
            if (status[q] == Status::dear) dear.push_back(look.rows[q]);
            answers[look.rows[q]].dense = !use_preview;
        }
        // Remember for the next calls whether most queries want their estimates kept.
        if (!keep && 2 * came_back > n) keeping_.store(16);
        else if (keep && keeping_.load() > 0) keeping_.fetch_sub(1);
    }
    if (!kept_later.empty()) {
        Question again = question;
        again.keep = true;
        run(hidden, kept_later, again, dense_only, resolve, finish, answers);
    }
    if (dear.empty()) return;
    if (use_preview) {
        run(hidden, dear, question, true, resolve, finish, answers);
        return;
    }
    for (int64_t row : dear) {
        answers[row].dense = true;
        finish(hidden + row * dim, row, question.threads, answers[row]);
    }
}

void Executor::prepare(const Source& source, Look& look) const {
    const int n = static_cast<int>(look.rows.size());
    Prepared& to = look.prepared;
    to.n = n;
    to.add.assign(n, 0.f);
    to.radius.assign(n, Radius{});
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
    std::vector<double> x;
    for (int q = 0; q < n; ++q) {
        const double* h = &look.hidden[q * dim];
        x.assign(h, h + dim);
        Radius& radius = to.radius[q];
        if (source.rotated) {
            if (mean != nullptr)
                for (int64_t j = 0; j < dim; ++j) x[j] -= mean[j];
            if (rotation != nullptr) {
                std::vector<double> turned(rotated_dim, 0.0);
                for (int64_t j = 0; j < dim; ++j)
                    for (int64_t i = 0; i < rotated_dim; ++i) turned[i] += x[j] * rotation[j * rotated_dim + i];
                x.swap(turned);
            }
            if (centre != nullptr) {
                double sum = std::inner_product(h, h + dim, centre, 0.0);
                to.add[q] = static_cast<float>(sum);
                radius.constant = up(std::fabs(sum) * 0x1p-20);
            }
        }
        if (source.codes != nullptr) {
            prepare_codes(source, x, q, look);
        } else {
            for (int64_t j = 0; j < source.width; ++j)
                to.x[to.padded == 0 ? q * source.width + j : j * to.padded + q] = static_cast<float>(x[j]);
        }
        radius.terms = static_cast<int>(source.terms.size());
        for (int t = 0; t < radius.terms; ++t) {
            const Term& term = source.terms[t];
            double rest = 0, peaks = 0, value = 1;
            if (term.kind == TermKind::norm) value = norm(x, term.start, term.stop);
            if (term.kind == TermKind::rest || term.kind == TermKind::peaks) {
                split_peaks(x, term.start, term.stop, &rest, &peaks);
                value = term.kind == TermKind::rest ? rest : peaks;
            }
            if (term.kind == TermKind::quantised) value = radius.term[t];
            radius.slack[t] = source.slack[t];
            radius.term[t] = up(value * term.factor * (1 + 0x1p-18));
        }
    }
}

// x in two int8 planes per segment: x^ = step * (256 * high + low). Leaves ‖x - x^‖ in the "quantised" terms.
void Executor::prepare_codes(const Source& source, const std::vector<double>& x, int q, Look& look) const {
    Prepared& to = look.prepared;
    double lost = 0;
    for (size_t s = 0; s < source.segments.size(); ++s) {
        const Segment& seg = source.segments[s];
        double most = 0;
        for (int64_t j = seg.start; j < seg.stop; ++j) most = std::max(most, std::fabs(x[j]));
        const float step = up(most / 32512.0);
        int8_t* plane = to.planes.data() + seg.first_quad * 8 * to.n + q * seg.quads * 8;
        int64_t sum[2] = {0, 0};
        for (int64_t j = seg.start; j < seg.stop; ++j) {
            double scaled = step > 0 && std::isfinite(step) ? x[j] / step : 0;
            int whole = static_cast<int>(std::lrint(std::min(32512.0, std::max(-32512.0, scaled))));
            int high = (whole + 128) >> 8, low = whole - high * 256;
            int64_t at = (j - seg.start) / 4 * 8 + (j - seg.start) % 4;
            plane[at] = static_cast<int8_t>(high);
            plane[at + 4] = static_cast<int8_t>(low);
            sum[0] += high;
            sum[1] += low;
            double gap = x[j] - static_cast<double>(step) * whole;
            lost += gap * gap;
        }
        to.step[s * to.n + q] = step;
        to.offset[(s * to.n + q) * 2] = static_cast<int32_t>(128 * sum[0]);
        to.offset[(s * to.n + q) * 2 + 1] = static_cast<int32_t>(128 * sum[1]);
    }
    for (size_t t = 0; t < source.terms.size(); ++t)
        if (source.terms[t].kind == TermKind::quantised) to.radius[q].term[t] = up(std::sqrt(lost));
}

void Executor::scan(const Look& look, int64_t first, int64_t n, float* est, int64_t stride, float* scratch) const {
    const Source& source = *look.source;
    const Prepared& from = look.prepared;
    for (int64_t c = first; c < first + n; c += kBlock) {
        float* out = est + (c - first);
        const float* base = source.base + c;
        const int64_t count = std::min<int64_t>(kBlock, vocab - c);
        if (source.codes != nullptr) {
            const uint8_t* block = source.codes + c * source.quads * 4;
            for (size_t s = 0; s < source.segments.size(); ++s) {
                const Segment& seg = source.segments[s];
                kernels->scan_u8(block + seg.first_quad * 256, seg.quads, from.planes.data() + seg.first_quad * 8 * from.n,
                                 &from.offset[s * from.n * 2], &from.step[s * from.n], source.scale + s * padded + c,
                                 s == 0 ? base : nullptr, from.add.data(), from.n, out, stride);
            }
            continue;
        }
        const char* rows = static_cast<const char*>(source.rows) + c * source.width * (source.kind == Kind::f32 ? 4 : 2);
        if (from.padded == 0) {
            kernels->dense_rows(rows, source.kind, source.width, count, from.x.data(), from.n, out, stride);
            for (int q = 0; q < from.n; ++q)
                for (int64_t i = 0; i < count; ++i) out[q * stride + i] += base[i] + from.add[q];
            continue;
        }
        float* tile = scratch + kBlock * source.width;
        kernels->dense_tile(rows, source.kind, source.width, count, from.x.data(), from.padded, scratch, tile);
        for (int q = 0; q < from.n; ++q)
            for (int64_t i = 0; i < count; ++i) out[q * stride + i] = tile[i * from.padded + q] + base[i] + from.add[q];
    }
}

// Padding and masked classes are at -inf: they are in no sum and reach no threshold.
void Executor::hide(const Question& question, int64_t row, int64_t first, int64_t n, float* est) const {
    const float none = -std::numeric_limits<float>::infinity();
    for (int64_t i = std::max<int64_t>(0, vocab - first); i < n; ++i) est[i] = none;
    if (question.mask == nullptr) return;
    const uint8_t* mask = question.mask + (question.mask_per_row ? row * vocab : 0) + first;
    for (int64_t i = 0; i < n && first + i < vocab; ++i)
        if (mask[i] == 0) est[i] = none;
}

void Executor::look_at_all(Look& look, const Question& question) const {
    const int n = look.prepared.n;
    const int64_t chunks = (padded + kChunk - 1) / kChunk;
    const std::vector<int64_t> order = spread(chunks);
    std::vector<std::atomic<float>> threshold(n);
    for (auto& t : threshold) t.store(-std::numeric_limits<float>::max());
    std::atomic<int64_t> next{0}, read{0};
    const bool keep = !look.est.empty();
    const bool tiled = look.source->codes == nullptr && look.prepared.padded > 0;
    run_parallel(static_cast<int>(std::min<int64_t>(look.threads, chunks)), [&](int thread) {
        std::vector<float> own(keep ? 0 : n * kChunk), work(2 * kChunk);
        std::vector<float> scratch(tiled ? kBlock * (look.source->width + kTileQueries) : 0);
        for (int64_t c = next++; c < chunks; c = next++) {
            const int64_t first = order[c] * kChunk, count = std::min<int64_t>(kChunk, padded - first);
            float* est = keep ? look.est.data() + first : own.data();
            const int64_t stride = keep ? padded : kChunk;
            scan(look, first, count, est, stride, scratch.data());
            read += count;
            bool wanted = false;
            for (int q = 0; q < n; ++q) {
                if (look.dear[q].load(std::memory_order_relaxed) != 0) continue;
                if (!gather(look, question, q, thread, first, count, est + q * stride, threshold[q], work.data()))
                    look.dear[q].store(1);
                wanted = true;
            }
            if (!wanted) break;
        }
    });
    const double share_read = static_cast<double>(read.load()) / static_cast<double>(padded);
    for (int q = 0; q < n; ++q) look.bytes[q] = look.source->bytes * share_read / n;
}

// Takes one chunk of estimates into a query's part. False: the query is dear here and is better read densely.
bool Executor::gather(Look& look, const Question& question, int q, int thread, int64_t first, int64_t n, float* est,
                      std::atomic<float>& threshold, float* scratch) const {
    Part& part = look.parts[static_cast<size_t>(q) * look.threads + thread];
    float *rad = scratch, *lower = scratch + kChunk;
    bool finite = true;
    for (int64_t i = std::max<int64_t>(0, vocab - first); i < n; ++i) est[i] = 0.f;  // padding is not an estimate
    float top = kernels->largest(est, n, &finite);
    if (!finite) return false;
    if (question.mask != nullptr || first + n > vocab) {
        hide(question, look.rows[q], first, n, est);
        top = kernels->largest(est, n, &finite);
        if (top == -std::numeric_limits<float>::infinity()) return true;
    }
    const float most = kernels->radius(look.prepared.radius[q], first, n, rad);

    const float shift = static_cast<float>(linked(top) * question.beta);
    double low = 0, high = 0;
    kernels->interval_sums(est, rad, n, most, link, static_cast<float>(question.beta), shift, &low, &high);
    if (shift > part.shift) {
        const double fade = std::exp(part.shift - shift);
        part.low = part.low * fade + low;
        part.high = part.high * fade + high;
        part.shift = shift;
    } else {
        const double fade = std::exp(shift - part.shift);
        part.low += low * fade;
        part.high += high * fade;
    }

    const size_t k = static_cast<size_t>(question.k);
    part.seen += n;
    if (k == 0 || top + most < threshold.load(std::memory_order_relaxed)) return true;
    const float floor = part.best.size() == k ? part.best.front() : -std::numeric_limits<float>::max();
    const int64_t above = kernels->lower_above(est, rad, n, floor, lower);
    for (int64_t i = 0; i < above; ++i) {
        if (part.best.size() == k) {
            if (lower[i] <= part.best.front()) continue;
            std::pop_heap(part.best.begin(), part.best.end(), std::greater<float>());
            part.best.back() = lower[i];
        } else {
            part.best.push_back(lower[i]);
        }
        std::push_heap(part.best.begin(), part.best.end(), std::greater<float>());
    }
    if (part.best.size() == k) raise(threshold, part.best.front());

    int32_t ids[kChunk];
    float kept[kChunk], upper[kChunk];
    const int64_t came = kernels->survivors(est, rad, n, threshold.load(std::memory_order_relaxed),
                                            static_cast<int32_t>(first), ids, kept, upper);
    part.ids.insert(part.ids.end(), ids, ids + came);
    part.est.insert(part.est.end(), kept, kept + came);
    part.upper.insert(part.upper.end(), upper, upper + came);
    const double bearable = share * static_cast<double>(part.seen) + 8.0 * static_cast<double>(k) + 256;
    return part.seen < kWarmup || static_cast<double>(part.ids.size()) <= bearable;
}

void Executor::score(const double* hidden, std::vector<Scored>& rows, int threads) const {
    const int64_t n = static_cast<int64_t>(rows.size()), grain = 16;
    const bool small = n * dim < 65536;
    std::atomic<int64_t> next{0};
    run_parallel(small ? 1 : threads, [&](int) {
        int64_t ids[grain];
        double z[grain];
        for (int64_t start = next.fetch_add(grain); start < n; start = next.fetch_add(grain)) {
            const int64_t count = std::min(grain, n - start);
            for (int64_t i = 0; i < count; ++i) ids[i] = rows[start + i].id;
            kernels->dot_rows(weight, kind, dim, ids, count, hidden, z);
            for (int64_t i = 0; i < count; ++i) rows[start + i].z = z[i] + (bias == nullptr ? 0.0 : bias[ids[i]]);
        }
    });
}

void Executor::logits(const double* hidden, int64_t count, const int64_t* ids, int64_t m, int threads,
                      double* out) const {
    std::atomic<int64_t> next{0};
    const int64_t grain = std::max<int64_t>(1, 256 / std::max<int64_t>(1, m));
    run_parallel(count * m * dim < 65536 ? 1 : threads, [&](int) {
        for (int64_t start = next.fetch_add(grain); start < count; start = next.fetch_add(grain))
            for (int64_t b = start; b < std::min(count, start + grain); ++b) {
                kernels->dot_rows(weight, kind, dim, ids + b * m, m, hidden + b * dim, out + b * m);
                if (bias == nullptr) continue;
                for (int64_t i = 0; i < m; ++i) out[b * m + i] += bias[ids[b * m + i]];
            }
    });
}

}  // namespace headlong
