// Looking at all classes: codes (or the dense rows) are read once for a group of queries, and every thread keeps, per query, the
// interval sums of the normaliser and the classes whose upper end reaches the threshold.
#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include "executor/look_costs.h"
#include "executor/verbs.h"
#include "kernels/any_rows.h"
#include "runtime/pool.h"
#include "runtime/shared_work.h"
#include "runtime/trace.h"

namespace headlong {
namespace {

constexpr int64_t kMostBytes = 32 << 20;  // estimates are kept after the sample where they take no more than this

constexpr int64_t kSample = 32;                    // one in so many classes is looked at first
constexpr int64_t kLeastSample = 128;              // of each of two spans
constexpr double kSmallSample = 1 << 16;           // bytes of a sample below which one thread takes it

constexpr int64_t kMostPieces = 256;  // of the classes: sums are joined piece by piece
constexpr double kArithmetic = 0.1;   // of a dense pass for one query: what no other query shares

// All classes, every kSample-th chunk first: a threshold from all over the classes, before most of them are read. Of a small layer
// these are two, cut to `least` classes or a 64th of all: there, they are a large part of what is read.
std::vector<Span> spread(int64_t padded, int64_t least) {
    const int64_t chunks = (padded + kChunk - 1) / kChunk;
    const bool cut = chunks > 1 && chunks <= 64;
    const int64_t size = cut ? std::min(kChunk, std::max(in_blocks(least), padded / 64 / kBlock * kBlock)) : kChunk;
    std::vector<Span> spans, rest;
    for (int64_t c = 0; c < chunks; ++c) {
        const Span all{c * kChunk, std::min<int64_t>(kChunk, padded - c * kChunk)};
        if (c % (cut ? (chunks + 1) / 2 : kSample) != 0) {
            rest.push_back(all);
            continue;
        }
        spans.push_back({all.first, std::min(size, all.count)});
        if (all.count > size) rest.push_back({all.first + size, all.count - size});
    }
    spans.insert(spans.end(), rest.begin(), rest.end());
    return spans;
}

void scan_classes(const Executor& e, const Look& look, int64_t first, int64_t n, float* est, int64_t stride, float* scratch) {
    const Source& source = *look.source;
    const Prepared& from = look.prepared;
    if (!from.strips.empty()) {
        e.kernels->scan_one(source.codes, source.words, first, n / kBlock, from.strips.data(),
                          static_cast<int64_t>(from.strips.size()), source.base, from.add[0], est);
        return;
    }
    Scratch<uint8_t> room(source.codes == nullptr ? 0 : room_for_block(source));
    for (int64_t c = first; c < first + n; c += kBlock) {
        float* out = est + (c - first);
        const float* base = source.base + c;
        const int64_t count = std::min<int64_t>(kBlock, e.vocab - c);
        if (source.codes != nullptr) {
            const uint8_t* block = block_of(*e.kernels, source, c / kBlock, room.data());
            for (size_t s = 0; s < source.segments.size(); ++s) {
                const Segment& seg = source.segments[s];
                const int32_t* sums = source.sums.empty() ? nullptr : source.sums.data() + s * e.padded + c;
                e.kernels->scan_u8(block + seg.first_word * 256, seg.words, sums, from.planes.data() + seg.first_word * 8 * from.n,
                                 &from.offset[s * from.n * 2], &from.step[s * from.n], source.scale + s * e.padded + c,
                                 s == 0 ? base : nullptr, from.add.data(), from.n, out, stride);
            }
            continue;
        }
        const char* rows = static_cast<const char*>(source.rows) + c * row_bytes(source.kind, source.width);
        if (from.padded == 0) {
            dense_rows(*e.kernels, rows, source.kind, source.width, count, from.x.data(), from.n, out, stride);
            for (int q = 0; q < from.n; ++q)
                for (int64_t i = 0; i < count; ++i) out[q * stride + i] += base[i] + from.add[q];
            continue;
        }
        float* tile = scratch + kBlock * source.width;
        dense_tile(*e.kernels, rows, source.kind, source.width, count, from.x.data(), from.padded, scratch, tile);
        for (int q = 0; q < from.n; ++q)
            for (int64_t i = 0; i < count; ++i) out[q * stride + i] = tile[i * from.padded + q] + base[i] + from.add[q];
    }
}

// The largest estimate. Padding and masked classes are put at -inf: they are in no sum and reach no threshold.
float largest_estimate(const Executor& e, const Question& question, int64_t row, int64_t first, int64_t n, float* est, bool* finite) {
    const int64_t there = std::min(n, e.vocab - first);
    const uint8_t* mask = question.mask == nullptr ? nullptr : question.mask + (question.mask_per_row ? row * e.vocab : 0) + first;
    if (there == n) return mask == nullptr ? e.kernels->largest(est, n, finite) : e.kernels->largest_there(est, mask, n, finite);
    uint8_t edge[kChunk] = {};
    if (mask == nullptr) std::fill_n(edge, there, uint8_t{1});
    else std::copy_n(mask, there, edge);
    std::fill(est + there, est + n, 0.f);  // padding is not an estimate
    return e.kernels->largest_there(est, edge, n, finite);
}

// Whether a radius is a number for every class. An infinite half of the query's (its length is beyond float32) is none beside a
// row that loses nothing: infinity times zero.
bool is_known(const Radius& radius) {
    return std::all_of(radius.term, radius.term + radius.terms, [](float half) { return half < std::numeric_limits<float>::infinity(); });
}

// Takes one chunk of estimates into a query's part. False: the query is expensive here and is better read densely.
bool gather(const Executor& e, Look& look, const Question& question, int q, int thread, int64_t first, int64_t n, float* est,
                      Masses& masses, float* scratch) {
    Part& part = look.parts[static_cast<size_t>(q) * look.threads + thread];
    std::atomic<float>& threshold = look.threshold[q];
    float *rad = look.rad.empty() ? scratch : &look.rad[first], *lower = scratch + kChunk;
    bool finite = true;
    const float top = largest_estimate(e, question, look.rows[q], first, n, est, &finite);
    if (!finite || !is_known(look.prepared.radius[q])) return false;
    const float none = -std::numeric_limits<float>::infinity();
    if (top == none) return std::fill_n(rad, n, 0.f), true;
    const float most = e.kernels->radius(look.prepared.radius[q], first, n, rad);
    // A class that is not there has no width: -inf plus an infinite radius would be no number.
    for (int64_t i = 0; i < n && !look.rad.empty() && !(most < -none); ++i) rad[i] = est[i] == none ? 0 : rad[i];

    const float shift = static_cast<float>(e.linked(top) * question.beta);
    Kernels::Sums here{0, 0, 0, 0};
    const float beta = static_cast<float>(question.beta);
    e.kernels->interval_sums(est, rad, n, most, e.link, beta, shift, &here);
    masses.join(shift, here);

    const size_t k = by_budget(e, look) ? 0 : static_cast<size_t>(question.k);
    part.seen += n;
    if (k == 0 || top + most < threshold.load(std::memory_order_relaxed)) return true;
    const float floor = part.best.full() ? part.best.worst() : -std::numeric_limits<float>::max();
    const int64_t above = e.kernels->lower_above(est, rad, n, floor, lower);
    for (int64_t i = 0; i < above; ++i)
        if (!part.best.full() || lower[i] > part.best.worst()) part.best.add(lower[i], k);
    part.best.cut(k);
    if (part.best.full()) raise_to(threshold, part.best.worst());

    int32_t ids[kChunk];
    float kept[kChunk], upper[kChunk];
    const int64_t came = e.kernels->survivors(est, rad, n, threshold.load(std::memory_order_relaxed),
                                            static_cast<int32_t>(first), ids, kept, upper);
    part.ids.insert(part.ids.end(), ids, ids + came);
    part.est.insert(part.est.end(), kept, kept + came);
    part.upper.insert(part.upper.end(), upper, upper + came);
    return true;
}

// One pass over some of the pieces. Spans come in runs of one piece each, so that its sums are added up by one thread, in order.
struct Pass {
    const Executor& e;
    Look& look;
    const Question& question;
    int64_t length = 1;           // spans of a piece
    bool keep = false;            // estimates of all classes
    std::vector<int64_t> places;  // of the sample's spans, one behind the other
    Turns<int64_t> next{0};
    std::atomic<int64_t> read{0};

    bool wanted() const {
        for (int q = 0; q < look.prepared.n; ++q)
            if (look.finish_densely[q].load(std::memory_order_relaxed) == 0) return true;
        return false;
    }

    void take(int thread, int64_t piece, size_t s, float* own, float* work, float* scratch) {
        const Span& span = look.spans[s];
        float* est = keep ? look.est.data() + span.first : own;
        int64_t stride = keep ? e.padded : kChunk;
        if (!keep && s < look.sample) {
            est = look.sampled.data() + places[s];
            stride = look.sample_size;
        }
        scan_classes(e, look, span.first, span.count, est, stride, scratch);
        for (int q = 0; q < look.prepared.n; ++q)
            if (look.finish_densely[q].load(std::memory_order_relaxed) == 0 &&
                !gather(e, look, question, q, thread, span.first, span.count, est + q * stride,
                        look.pieces[q * look.piece_count + piece], work))
                look.finish_densely[q].store(1);
    }

    void run(int64_t stop, int threads) {
        const bool tiled = look.source->codes == nullptr && look.prepared.padded > 0;
        const int64_t spans = static_cast<int64_t>(look.spans.size());
        run_parallel(static_cast<int>(std::min<int64_t>(threads, stop - next.load())), [&](int thread) {
            Scratch<float> own(keep ? 0 : look.prepared.n * kChunk), work(2 * kChunk);
            int64_t own_read = 0;  // a counter that threads share would cost each of them as much as a span does
            Scratch<float> scratch(tiled ? kBlock * (look.source->width + kTileQueries) : 0);
            for (auto run = next.run(stop, threads); run.first < stop; run = next.run(stop, threads))
                for (int64_t piece = run.first; piece < run.stop && wanted(); ++piece) {
                    check_in();
                    for (int64_t s = piece * length; s < std::min(spans, (piece + 1) * length); ++s) {
                        take(thread, piece, static_cast<size_t>(s), own.data(), work.data(), scratch.data());
                        own_read += look.spans[s].count;
                    }
                }
            read += own_read;
        });
        next.store(stop);
    }
};

// How the classes are cut into spans and pieces, and how many of these are the sample.
void cut_classes(const Executor& e, Look& look, const Question& question, Pass& pass) {
    const int n = look.prepared.n;
    look.spans = spread(e.padded, std::max(kLeastSample, 2 * question.k));
    look.threshold = std::vector<std::atomic<float>>(n);
    for (auto& t : look.threshold) t.store(-std::numeric_limits<float>::max());
    const int64_t spans = static_cast<int64_t>(look.spans.size()), chunks = (e.padded + kChunk - 1) / kChunk;
    const int64_t length = pass.length = (chunks + kMostPieces - 1) / kMostPieces;
    look.piece_count = (spans + length - 1) / length;
    look.pieces.assign(static_cast<size_t>(n) * look.piece_count, Masses{});
    // An even number of pieces in the sample, for two threads to end together.
    const int64_t first = spans > chunks ? 2 : ((chunks + kSample - 1) / kSample + length - 1) / length;
    look.sample_pieces = first > 2 ? first / 2 * 2 : first;
    look.sample = static_cast<size_t>(std::min(spans, look.sample_pieces * length));
    look.sample_size = 0;
    pass.places.resize(look.sample);
    for (size_t s = 0; s < look.sample; look.sample_size += look.spans[s++].count) pass.places[s] = look.sample_size;
    pass.keep = !look.est.empty();
    if (!pass.keep) look.sampled.resize(static_cast<size_t>(n) * look.sample_size);
}

template <typename Work>
void each_query(const Look& look, const Work& work) {
    const int n = look.prepared.n;
    Turns<int> turn;
    run_parallel(std::min(look.threads, n), [&](int) {
        for (int q = turn++; q < n; q = turn++) work(q);
    });
}

// Thresholds from the sample, and who is better read densely. Returns how many normalisers want to be refined.
int64_t judge(const Executor& e, Look& look, const Question& question) {
    const int n = look.prepared.n;
    std::vector<Outlook> outlook(n, Outlook::narrow);
    if (!by_budget(e, look))
        each_query(look, [&](int q) {
            if (question.k > 0) raise_threshold(e, look, q, question);
            if (look.finish_densely[q].load() == 0) outlook[q] = refining(e, look, q, question);
            if (outlook[q] == Outlook::finish_densely) look.finish_densely[q].store(1);
        });
    // A dense pass that some pay for adds no more to others than refining their normaliser would.
    const int64_t gone = std::count_if(look.finish_densely.begin(), look.finish_densely.end(), [](const std::atomic<int>& d) { return d.load() != 0; });
    if (n >= 8 && 8 * gone >= n)
        for (int q = 0; q < n; ++q)
            if (outlook[q] == Outlook::wide) look.finish_densely[q].store(1);
    return std::count(outlook.begin(), outlook.end(), Outlook::wide);
}

// Estimates are kept after all, those of the sample too.
void keep_estimates(const Executor& e, Look& look) {
    const int n = look.prepared.n;
    look.est.resize(static_cast<size_t>(n) * e.padded);
    for (int q = 0; q < n; ++q) {
        const float* from = look.sampled.data() + q * look.sample_size;
        for (size_t s = 0; s < look.sample; from += look.spans[s++].count)
            std::copy_n(from, look.spans[s].count, &look.est[q * e.padded + look.spans[s].first]);
    }
}

}  // namespace

// Sums on a common shift, the larger of the two.
void Masses::join(double other_shift, const Kernels::Sums& more) {
    const double top = std::max(shift, other_shift);
    if (top == -kInf) return;
    const double fade = std::exp(shift - top), here = std::exp(other_shift - top);
    sums.low = sums.low * fade + more.low * here;
    sums.high = sums.high * fade + more.high * here;
    sums.centre = sums.centre * fade + more.centre * here;
    sums.moved = sums.moved * fade + more.moved * here;
    shift = top;
}

Look start_look(const Executor& e, const Source& source, const double* hidden, const std::vector<int64_t>& rows, int threads) {
    Look look;
    look.source = &source;
    look.rows = rows;
    look.together = static_cast<double>(rows.size());
    look.threads = threads;
    look.hidden.resize(rows.size() * e.dim);
    for (size_t q = 0; q < rows.size(); ++q) std::memcpy(&look.hidden[q * e.dim], hidden + rows[q] * e.dim, sizeof(double) * e.dim);
    prepare(e, source, look);
    return look;
}

// Queries that come together share the bytes of a dense pass, and what is left to each of them is arithmetic.
double part_of_dense(const Executor& e, const Look& look) {
    return look.source == &e.preview ? std::min(1.0, 1 / look.together + kArithmetic) : 1;
}

// Share of the classes that is worth scoring row by row for the normaliser.
double worth_scoring(const Executor& e, const Look& look) { return e.share * part_of_dense(e, look); }

// Rows that an estimate of the normaliser may take, if it turns out to need more than it was thought to.
double most_rows(const Executor& e, const Look& look) { return part_of_dense(e, look) * (e.share * static_cast<double>(e.vocab) + 4096); }

// Classes of which a query of several may read so many bytes each, one by one, before its part of a dense pass is cheaper: what that spares
// beside the look at all classes, or a part of it where the look is most of it.
double bearable_hits(const Executor& e, const Look& look, double bytes) {
    if (look.together < 2 || look.source != &e.preview) return kInf;
    const double dense = dense_cost(e, look.together), spared = dense - look_cost(e);
    return std::max(0.3 * dense, 0.7 * spared) * static_cast<double>(e.vocab) / hit_cost(bytes);
}

// The same while the look itself can still be saved.
double bearable_hits_beforehand(const Executor& e, const Look& look, double bytes) {
    if (look.together < 2 || look.source != &e.preview) return kInf;
    const double dense = dense_cost(e, look.together);
    return std::max(0.3 * dense, dense - look_cost(e)) * static_cast<double>(e.vocab) / hit_cost(bytes);
}

void look_at_all(const Executor& e, Look& look, const Question& question, bool sample_alone) {
    const int n = look.prepared.n;
    Pass pass{e, look, question, 1, false, {}};
    cut_classes(e, look, question, pass);
    // A sample of the classes first. The exact scores of its best estimates are a better threshold than the lower
    // ends of intervals, and it says early whether a query is better read densely.
    const double sample_bytes = look.source->bytes * static_cast<double>(look.sample_size) / static_cast<double>(e.padded) * n;
    const int sample_threads = sample_bytes < kSmallSample ? 1 : look.threads;
    pass.run(look.sample_pieces, sample_threads);
    mark("look: sample");
    const int64_t wide = judge(e, look, question);
    mark("look: judgement");
    if (!pass.keep && 2 * wide > n && n * e.padded * 4 <= kMostBytes) {
        pass.keep = true;
        keep_estimates(e, look);
    }
    if (!sample_alone && pass.wanted()) pass.run(look.piece_count, look.threads);
    mark("look: all classes");
    const double share_read = static_cast<double>(pass.read.load()) / static_cast<double>(e.padded);
    look.masses.assign(n, Masses{});
    for (int q = 0; q < n; ++q) {
        look.bytes[q] = look.source->bytes * share_read / n;
        look.masses[q] = look.joined(q, look.piece_count);
    }
}

}  // namespace headlong
