// The pass over all classes: sums, and the classes that are reported to a query.
#include <algorithm>

#include "normaliser/draw_points.h"
#include "runtime/pool.h"
#include "runtime/shared_work.h"
#include "runtime/trace.h"
#include "side_by_side/state.h"

namespace headlong {
namespace {

constexpr double kClearly = 1.3;  // more than a dense pass, by one piece alone
constexpr int kLists = 3;         // of hits, for each thread: of the piece that is judged first, of the others that are, of all others
constexpr int64_t kJudged = 4, kLeastJudged = 4;  // of the sample's pieces one in so many is weighed before the others, and no fewer

float first_point(float theta, uint64_t& noise) {
    noise += 0x9E3779B97F4A7C15u;
    return theta * static_cast<float>(-std::log((static_cast<double>(mix(noise) >> 11) + 0.5) * 0x1p-53));
}

// What one thread has for its pieces.
struct Worker {
    const Executor& e;
    BatchState& batch;
    LaneLook ask;  // with tau and edge of its own: a query to which more classes are reported than it has room for gets no more of them
    Scratch<float> tau, edge, own, left;
    Scratch<LaneHit> found;
    Scratch<int32_t> further;
    std::vector<uint64_t> noise;
    std::vector<uint8_t> over;
    std::vector<LaneHit>* hits;
    LaneState state{};
    int64_t closer = 0;

    Worker(const Executor& e, BatchState& batch, int list)
        : e(e), batch(batch), ask(batch.ask), tau(batch.lanes), edge(batch.lanes), own(kLanePiece * batch.lanes), left(batch.lanes),
          found(kBlock * batch.lanes), further(2 * kLanePiece), noise(batch.lanes), over(batch.lanes, 0),
          hits(&batch.hits[list * batch.lanes]) {
        std::copy_n(batch.tau.data(), batch.lanes, tau.data());
        std::copy_n(batch.edge.data(), batch.lanes, edge.data());
        ask.tau = tau.data();
        ask.edge = edge.data();
    }

    void tell(int level) {
        for (int64_t i = 0; i < state.hit_count; ++i) {
            LaneHit& hit = found[i];
            const int32_t q = hit.lane;
            if (over[q]) continue;
            hit.lane = level;
            hits[q].push_back(hit);
            if (++batch.reported[q] <= batch.most_reported) continue;
            over[q] = 1;
            tau[q] = edge[q] = left[q] = std::numeric_limits<float>::infinity();
            std::vector<LaneHit>().swap(hits[q]);
        }
        state.hit_count = 0;
    }

    void start(int64_t piece) {
        const int64_t lanes = batch.lanes;
        double* sums = batch.sums.data() + piece * 3 * lanes;
        state = {sums, sums + lanes, sums + 2 * lanes, left.data(), noise.data(), found.data(), 0,
                 further.data(), further.data() + kLanePiece, 0};
        for (int64_t q = 0; q < lanes; ++q) {
            left[q] = std::numeric_limits<float>::infinity();
            if (q >= batch.n || over[q] || !(batch.theta[q] > 0)) continue;
            noise[q] = mix(batch.key[q] + static_cast<uint64_t>(piece));
            left[q] = first_point(batch.theta[q], noise[q]);
        }
    }

    // The classes that are wide for several queries, by their codes of the next level.
    void look_further(float* est) {
        const int64_t some = state.further_count;
        closer += some;
        if (some == 0) return;
        const Deeper& next = e.deeper[0];
        const LaneRows rows{next.codes, next.bytes, 0, some, state.further, state.further_place};
        e.kernels->batch_scan(rows, batch.further.data(), static_cast<int>(batch.further.size()), nullptr, nullptr, batch.lanes, est);
        int32_t *ids = state.further, *places = state.further_place;
        state.further = nullptr;
        for (int64_t r = 0; r < some; r += kBlock) {
            const LaneRows part{nullptr, 0, 0, std::min(kBlock, some - r), ids + r, places + r};
            e.kernels->batch_weigh(ask, batch.closer_radius, part, est, state);
            tell(1);
        }
    }

    void read(int64_t piece) {
        const int64_t lanes = batch.lanes, first = piece * kLanePiece, count = std::min(kLanePiece, e.vocab - first);
        float* est = own.data();
        if (piece % kEvery == 0) est = batch.est.data() + piece / kEvery * kLanePiece * lanes;
        else scan_piece(e, batch, piece, est);
        start(piece);
        for (int64_t c = 0; c < count; c += kBlock) {
            const LaneRows rows{nullptr, 0, first + c, std::min(kBlock, count - c), nullptr, nullptr};
            const int64_t before = state.further_count;
            e.kernels->batch_weigh(ask, batch.wide, rows, est + c * lanes, state);
            for (int64_t i = before; i < state.further_count; ++i) state.further_place[i] += static_cast<int32_t>(c);
            tell(0);
        }
        look_further(est);
    }
};

// Pieces in ascending order: each thread reports its classes in theirs, in lists of its own.
void read_pieces(const Executor& e, BatchState& batch, const std::vector<int64_t>& pieces, int lists) {
    const int64_t count = static_cast<int64_t>(pieces.size());
    Turns<int64_t> next;
    run_parallel(static_cast<int>(std::min<int64_t>(batch.threads, count)), [&](int thread) {
        Worker worker(e, batch, lists + thread);
        for (auto run = next.run(count, batch.threads); run.first < count; run = next.run(count, batch.threads))
            for (int64_t at = run.first; at < run.stop; ++at) {
                check_in();
                worker.read(pieces[at]);
            }
        batch.closer += worker.closer;
    });
}

// Whether the whole of the batch would cost `times` as much as read densely, by what some of its pieces reported.
bool cheaper_densely(const Executor& e, const BatchState& batch, size_t some, double times) {
    const double every = static_cast<double>(batch.pieces) / static_cast<double>(some);
    double hits = 0;
    for (int q = 0; q < batch.n; ++q) hits += static_cast<double>(std::min(batch.reported[q].load(), batch.most_reported));
    const double closer = static_cast<double>(batch.closer.load()) * static_cast<double>(batch.lanes);
    const double looks = static_cast<double>(e.vocab) * static_cast<double>(batch.lanes) * lane_cost(e.preview.bytes / static_cast<double>(e.padded));
    const double rest = every * (closer * lane_cost(static_cast<double>(e.deeper[0].bytes)) + hits * hit_cost(static_cast<double>(e.deeper[0].bytes)));
    return looks + rest > times * static_cast<double>(e.vocab) * static_cast<double>(batch.n) * dense_cost(e, static_cast<double>(batch.n));
}

}  // namespace

bool pass_over(const Executor& e, BatchState& batch) {
    batch.sums.resize(batch.pieces * 3 * batch.lanes);
    std::fill_n(batch.sums.data(), batch.sums.size(), 0.0);
    batch.hits.resize(kLists * batch.threads * batch.lanes);
    batch.reported = std::vector<std::atomic<int64_t>>(batch.lanes);
    const int64_t stride = kEvery * std::clamp<int64_t>(batch.sample / kLeastJudged, 1, kJudged);
    std::vector<int64_t> some, others;
    for (int64_t p = 0; p < batch.pieces; ++p) (p % stride == 0 ? some : others).push_back(p);
    // One from the middle: where words are in the order of their frequency, the first piece reports more than any other.
    const auto middle = some.begin() + static_cast<int64_t>(some.size() / 2);
    read_pieces(e, batch, {*middle}, 0);
    bool stop = cheaper_densely(e, batch, 1, kClearly);
    if (!stop) {
        const size_t judged = some.size();
        some.erase(middle);
        read_pieces(e, batch, some, batch.threads);
        stop = cheaper_densely(e, batch, judged, 1);
    }
    mark("batch: judgement");
    if (stop) return false;
    read_pieces(e, batch, others, 2 * batch.threads);
    mark("batch: all classes");
    return true;
}

// The classes that were reported, in the order of the pieces, and the sums of the others.
Reported report_of(const BatchState& batch, int q) {
    Reported reported;
    reported.shift = batch.shift[q];
    size_t total = 0;
    const int lists = kLists * batch.threads;
    for (int t = 0; t < lists; ++t) total += batch.hits[t * batch.lanes + q].size();
    reported.hits.reserve(total);
    std::vector<size_t> at(lists, 0);
    while (reported.hits.size() < total) {  // the pieces of each list ascend
        int from = -1;
        int64_t least = 0;
        for (int t = 0; t < lists; ++t) {
            const std::vector<LaneHit>& own = batch.hits[t * batch.lanes + q];
            if (at[t] == own.size() || (from >= 0 && own[at[t]].id / kLanePiece >= least)) continue;
            from = t;
            least = own[at[t]].id / kLanePiece;
        }
        const std::vector<LaneHit>& own = batch.hits[from * batch.lanes + q];
        while (at[from] < own.size() && own[at[from]].id / kLanePiece == least) reported.hits.push_back(own[at[from]++]);
    }
    reported.scored.assign(total, 0);
    for (int64_t p = 0; p < batch.pieces; ++p) {
        const double* sums = batch.sums.data() + p * 3 * batch.lanes + q;
        reported.middle += sums[0];
        reported.gap += sums[batch.lanes];
        reported.moved += sums[2 * batch.lanes];
    }
    return reported;
}

}  // namespace headlong
