// Many queries side by side: a block of up to 64 goes over the classes once, each query in a lane of its own. What is shared
// makes the looks cheap: a class that is wide for several of them is looked at more closely at once, for all.
//
// In one pass every class adds its middle b to its queries' sums, is told of where it may be among the best or where its gap u is so
// wide that its row is worth scoring, and of the other gaps, laid end to end, points at exponential distances take their sample:
// given how many there are, they are drawn independently in proportion to u, as the bet (executor/bet.cpp) wants them. More points
// than needed are marked, each with a uniform number; those with the least marks are scored until the bet is won.
//
// What a pass needs to know beforehand comes from every eighth piece of the classes: the threshold, and about how large the sum
// is. A query that this does not serve is left to the others' way.
#include "batch/state.h"

#include <algorithm>
#include <numeric>

#include "executor/betting.h"
#include "executor/histogram.h"

namespace headlong {
namespace {

constexpr double kFilled = 0.6, kFilledByIds = 0.85;  // of the lanes, below which a query is better off alone
constexpr int64_t kShareCodes = 32, kManyCodes = 128;  // lanes below which so many bytes of few bits are taken apart in vain
constexpr int64_t kEvery = 8;        // one in so many pieces is a sample
constexpr int64_t kLeastClasses = 8192;
constexpr int64_t kMostBest = 64;    // of the sample's best
constexpr double kMore = 1.7;        // points that are marked for each that is wanted
constexpr double kStart = 0.75;      // of the draws that are expected to win, before the bet is first looked at
constexpr double kScatter = 0.004;   // the mean of X^2 that is expected
constexpr double kFarthest = 40;     // no exponential of lanes_weigh is larger
constexpr double kMostThin = 8;      // points on a gap that is drawn from; where more would fall, all points are thinned out
constexpr float kMostGap = 1e30f;    // in the sums of floats, where no bet wants less
constexpr size_t kMostClosed = 256;  // of those that are scored for the normaliser that nobody asked for
constexpr double kRebase = 60;       // a score is no further above the shift of all exponentials

float first_point(float theta, uint64_t& noise) {
    noise += 0x9E3779B97F4A7C15u;
    return theta * static_cast<float>(-std::log((static_cast<double>(mix(noise) >> 11) + 0.5) * 0x1p-53));
}

int64_t lanes_of(int64_t n) { return n <= 8 ? 8 : (n + 15) / 16 * 16; }

// How many of `left` queries go together: as many as fill their lanes, or all lanes that can be filled, and no fewer lanes
// than `least`.
int64_t block_of(int64_t left, double filled, int64_t least) {
    const int64_t all = std::min<int64_t>(left, kBlockQueries), lanes = lanes_of(all);
    const bool fills = static_cast<double>(all) >= filled * static_cast<double>(lanes);
    const int64_t some = fills ? all : lanes <= 8 ? 0 : lanes == 16 ? 8 : lanes - 16;
    return lanes_of(some) < least ? 0 : some;
}

}  // namespace

// Whether a call is one for ask_side_by_side: sure intervals from codes of the coordinates that lead, and finer ones behind them.
bool side_by_side(const Executor& e, const Question& question, int64_t count) {
    if (!e.has_preview || count < 2 || question.mask != nullptr || e.budget > 0 || e.link.form != 0 || !(e.link_a > 0)) return false;
    if (e.preview.codes == nullptr || !e.preview.rotated || e.rotation == nullptr || e.deeper.size() != 1 || !e.deeper[0].adds) return false;
    if (e.vocab < kLeastClasses || question.k > kMostBest || e.preview.terms.empty()) return false;
    if (question.eps < kInf && !(question.delta > 0)) return false;
    const auto whole = [](const Segment& seg) { return seg.words > 0; };
    for (const Term& term : e.preview.terms)
        if (term.likely != 1) return false;
    return std::all_of(e.preview.segments.begin(), e.preview.segments.end(), whole) &&
           std::all_of(e.deeper[0].segments.begin(), e.deeper[0].segments.end(),
                       [&](const Segment& seg) { return whole(seg) && seg.words % 4 == 0; });
}

// Answers what it can; returns the rows that are left.
std::vector<int64_t> ask_side_by_side(const Executor& e, const double* hidden, int64_t count, const Question& question,
                                         std::vector<Answer>& answers) {
    std::vector<int64_t> left;
    const auto few = [](const Segment& seg) { return seg.bits < 8; };
    const bool many = 4 * e.preview.words > kManyCodes && std::any_of(e.preview.segments.begin(), e.preview.segments.end(), few);
    const int64_t least = many ? kShareCodes : 0;
    for (int64_t first = 0, stop = 0; first < count; first = stop) {
        stop = first + block_of(count - first, question.eps < kInf ? kFilled : kFilledByIds, least);
        if (stop == first) {
            for (; stop < count; ++stop) left.push_back(stop);
            break;
        }
        BatchState batch;
        batch.n = static_cast<int>(stop - first);
        batch.lanes = static_cast<int>(lanes_of(batch.n));
        batch.threads = batch.look.threads = question.threads;
        batch.look.source = &e.preview;
        batch.look.rows.resize(batch.n);
        std::iota(batch.look.rows.begin(), batch.look.rows.end(), first);
        batch.look.hidden.resize(batch.n * e.dim);
        std::copy_n(hidden + first * e.dim, batch.n * e.dim, batch.look.hidden.data());
        prepare_batch(e, batch);
        read_sample(e, batch, question);
        pass_over(e, batch);
        const double shared = e.preview.bytes + static_cast<double>(batch.closer.load()) * static_cast<double>(e.deeper[0].bytes);
        std::vector<uint8_t> done(batch.n, 0);
        std::atomic<int> next{0};
        run_parallel(std::min(batch.threads, batch.n), [&](int) {
            for (int q = next++; q < batch.n; q = next++) {
                Answer& answer = answers[first + q];
                answer.bytes += shared / batch.n;
                const bool asked = !batch.sampled[q].empty() && (batch.theta[q] > 0 || !(question.eps < kInf));
                done[q] = asked && batch.reported[q] <= batch.most_reported && resolve_reported(e, batch, question, q, answer);
            }
        });
        for (int q = 0; q < batch.n; ++q)
            if (!done[q]) left.push_back(first + q);
        if (2 * std::accumulate(done.begin(), done.end(), 0) >= batch.n) continue;
        for (; stop < count; ++stop) left.push_back(stop);  // the others are taken to be alike
        break;
    }
    return left;
}

// How many classes a query may be told of before it is better off alone: as many as would be scored there, and as many again
// for points, unless the promise can never want them: draws_for a gap as wide as the whole sum and terms at its ends.
double most_reported(const Executor& e, const Question& question) {
    const double rows = e.share * static_cast<double>(e.vocab) + 4096;
    if (!(question.eps < kInf)) return rows;
    return rows + std::min(rows, kMore * draws_for(2 / question.delta, std::min(question.eps, 0.5), 1));
}

// Reads the sample, and says of every query what its classes are asked in the pass.
void read_sample(const Executor& e, BatchState& batch, const Question& question) {
    const int64_t lanes = batch.lanes, runs = kLanePiece / kLaneRun;
    batch.pieces = (e.vocab + kLanePiece - 1) / kLanePiece;
    for (int64_t p = 0; p < batch.pieces; p += kEvery) batch.order.push_back(p);
    batch.sample = static_cast<int64_t>(batch.order.size());
    for (int64_t p = 0; p < batch.pieces; ++p)
        if (p % kEvery != 0) batch.order.push_back(p);
    batch.est.resize(batch.sample * kLanePiece * lanes);
    batch.largest.resize(batch.sample * runs * lanes);
    for (Scratch<float>* each : {&batch.shift, &batch.octaves, &batch.tau, &batch.edge, &batch.worth, &batch.theta}) {
        each->resize(lanes);
        std::fill_n(each->data(), lanes, each == &batch.tau || each == &batch.edge ? std::numeric_limits<float>::infinity() : 0.f);
    }
    // Where no bet takes the widest gaps out of the sums, those go that a sum of floats would not hold.
    if (!(question.eps < kInf)) std::fill_n(batch.edge.data(), batch.n, kMostGap);
    const float closer = static_cast<float>(e.deeper[0].bytes * lanes), row = static_cast<float>(e.dim);
    batch.ask = {batch.n, batch.lanes, question.eps < kInf, e.link, static_cast<float>(question.beta), 0x1p-11f, 0.5f, 0.1f + closer / (40 * row),
                 batch.octaves.data(), batch.tau.data(), batch.edge.data(), batch.worth.data(), batch.theta.data()};
    batch.aim.assign(batch.n, 0);
    batch.key.assign(batch.n, 0);
    batch.narrow.assign(batch.n, 0);
    batch.floats.resize(batch.n * e.dim);
    batch.sampled.resize(batch.n);
    batch.most_reported = static_cast<int64_t>(most_reported(e, question));
    std::atomic<int64_t> next{0};
    run_parallel(batch.threads, [&](int) {
        for (int64_t s = next++; s < batch.sample; s = next++) {
            float* est = batch.est.data() + s * kLanePiece * lanes;
            scan_piece(e, batch, batch.order[s], est);
            const int64_t count = std::min(kLanePiece, e.vocab - batch.order[s] * kLanePiece);
            float* largest = batch.largest.data() + s * runs * lanes;
            std::fill_n(largest, runs * lanes, -std::numeric_limits<float>::infinity());
            e.kernels->lanes_largest(est, count, batch.lanes, largest);
        }
    });
    std::atomic<int> turn{0};
    run_parallel(std::min(batch.threads, batch.n), [&](int) {
        for (int q = turn++; q < batch.n; q = turn++) start_query(e, batch, question, q);
    });
    if (!(question.eps < kInf)) return;
    Scratch<double> sums(batch.sample * lanes);
    std::fill_n(sums.data(), sums.size(), 0.0);
    next.store(0);
    run_parallel(batch.threads, [&](int) {
        for (int64_t s = next++; s < batch.sample; s = next++)
            e.kernels->lanes_sums(batch.ask, batch.est.data() + s * kLanePiece * lanes,
                                std::min(kLanePiece, e.vocab - batch.order[s] * kLanePiece), batch.lanes, sums.data() + s * lanes);
    });
    for (int q = 0; q < batch.n; ++q) {
        std::vector<double> each(batch.sample);
        for (int64_t s = 0; s < batch.sample; ++s) each[s] = sums[s * lanes + q];
        aim_query(e, batch, question, q, each);
    }
}

// Estimates of a piece, [class][lanes].
void scan_piece(const Executor& e, const BatchState& batch, int64_t piece, float* est) {
    const int64_t first = piece * kLanePiece, stop = std::min(e.vocab, first + kLanePiece);
    const float* add = batch.terms.data() + batch.lanes;
    for (int64_t c = first; c < stop; c += kBlock) {
        const LaneRows rows{e.preview.codes + c * e.preview.words * 4, 0, c, std::min(kBlock, stop - c), nullptr, nullptr};
        e.kernels->lanes_scan(rows, batch.first.data(), static_cast<int>(batch.first.size()), e.preview.base, add, batch.lanes,
                            est + (c - first) * batch.lanes);
    }
}

// The likeliest classes of the sample, one of a run of 16 at most, are scored: the worst of k of them is a threshold, the best one the
// shift of all exponents.
void start_query(const Executor& e, BatchState& batch, const Question& question, int q) {
    const int64_t lanes = batch.lanes, runs = batch.sample * (kLanePiece / kLaneRun);
    const size_t wanted = static_cast<size_t>(std::max<int64_t>(8, question.k));
    std::vector<std::pair<float, int64_t>> best(runs);
    for (int64_t r = 0; r < runs; ++r) best[r] = {-batch.largest[r * lanes + q], r};
    std::nth_element(best.begin(), best.begin() + (wanted - 1), best.end());
    std::vector<Scored>& rows = batch.sampled[q];
    for (size_t i = 0; i < wanted; ++i) {
        const int64_t at = best[i].second * kLaneRun, piece = batch.order[at / kLanePiece], id = piece * kLanePiece + at % kLanePiece;
        if (!(std::fabs(best[i].first) < 1e30f)) return rows.clear();  // left to the others' way
        int64_t found = 0;
        while (found + 1 < kLaneRun && batch.est[(at + found) * lanes + q] != -best[i].first) ++found;
        rows.push_back({id + found, 0});
    }
    score(e, &batch.look.hidden[q * e.dim], rows, 1);
    std::vector<double> z;
    for (const Scored& s : rows) z.push_back(s.z);
    std::sort(z.begin(), z.end(), std::greater<double>());
    if (!(std::fabs(z[0]) < 1e30)) return rows.clear();
    batch.shift[q] = static_cast<float>(e.linked(z[0]) * question.beta);
    batch.octaves[q] = static_cast<float>((batch.shift[q] - e.link_b * question.beta) * 1.4426950408889634);
    if (question.k > 0) {
        const float below = static_cast<float>(z[question.k - 1]);
        batch.tau[q] = below > z[question.k - 1] ? std::nextafterf(below, -std::numeric_limits<float>::infinity()) : below;
    }
    batch.key[q] = key_of(e, batch.look, q, question);
}

// About how large the sum is, and so what a row is worth: a gap adds gap * price to the draws. Words are often in the order of their
// frequency, so that the pieces between two of the sample are taken to lie between them. A guess that is too low costs points.
void aim_query(const Executor& e, BatchState& batch, const Question& question, int q, std::vector<double>& sums) {
    if (batch.sampled[q].empty()) return;
    double fixed = float_error(e, batch.shift[q], question.beta) + dot_error(e, &batch.look.hidden[q * e.dim]);
    double square = 0;
    for (int64_t j = 0; j < e.dim; ++j) {
        const double x = batch.look.hidden[q * e.dim + j];
        batch.floats[q * e.dim + j] = static_cast<float>(x);
        square += x * x;
    }
    const double narrow = float_unit(e.dim) * e.most_norm * std::sqrt(square) * e.link_a * question.beta;
    batch.narrow[q] = narrow < 0.1 * question.eps;
    if (batch.narrow[q]) fixed += narrow;
    batch.ask.slop = std::max(batch.ask.slop, static_cast<float>(0x1p-11 + 2 * fixed));
    double all = 0;
    for (const Scored& s : batch.sampled[q]) {
        const double known = std::exp(e.linked(s.z) * question.beta - batch.shift[q]);
        double& sum = sums[s.id / kLanePiece / kEvery];
        sum = std::max(0.0, sum - known);
        all += known;
    }
    for (int64_t p = 0; p < batch.pieces; ++p) {
        const double here = sums[p / kEvery], next = sums[std::min(batch.sample - 1, p / kEvery + 1)];
        const double part = static_cast<double>(p % kEvery) / static_cast<double>(kEvery);
        all += here > 0 && next > 0 ? 0.7 * here * std::pow(next / here, part) : 0;
    }
    const double price = (std::log(2 / question.delta) + 0.8) / all;
    batch.aim[q] = question.eps - fixed;
    if (!(batch.aim[q] > 0)) return;
    batch.theta[q] = static_cast<float>(batch.aim[q] / price / kMore);
    batch.edge[q] = batch.theta[q];
    batch.worth[q] = static_cast<float>(price / batch.aim[q]);
}

void pass_over(const Executor& e, BatchState& batch) {
    const int64_t lanes = batch.lanes;
    batch.sums.resize(batch.pieces * 3 * lanes);
    std::fill_n(batch.sums.data(), batch.sums.size(), 0.0);
    batch.hits.resize(batch.threads * lanes);
    batch.reported = std::vector<std::atomic<int64_t>>(lanes);
    std::atomic<int64_t> next{0};
    run_parallel(batch.threads, [&](int thread) {
        // A query that is told of more classes than it may be is asked about no more of them, on this thread.
        LaneLook ask = batch.ask;
        Scratch<float> tau(lanes), edge(lanes);
        std::copy_n(batch.tau.data(), lanes, tau.data());
        std::copy_n(batch.edge.data(), lanes, edge.data());
        ask.tau = tau.data();
        ask.edge = edge.data();
        std::vector<uint8_t> over(lanes, 0);
        Scratch<float> own(kLanePiece * lanes), left(lanes);
        Scratch<LaneHit> found(kBlock * lanes);
        Scratch<int32_t> further(2 * kLanePiece);
        std::vector<uint64_t> noise(lanes);
        std::vector<LaneHit>* hits = &batch.hits[thread * lanes];
        int64_t closer = 0;
        // Pieces are taken in their own order, so that each thread's classes are told of in theirs.
        for (int64_t piece = next++; piece < batch.pieces; piece = next++) {
            float* est = own.data();
            if (piece % kEvery == 0) est = batch.est.data() + piece / kEvery * kLanePiece * lanes;
            else scan_piece(e, batch, piece, est);
            double* sums = batch.sums.data() + piece * 3 * lanes;
            LaneState state{sums, sums + lanes, sums + 2 * lanes, left.data(), noise.data(), found.data(), 0,
                            further.data(), further.data() + kLanePiece, 0};
            for (int64_t q = 0; q < lanes; ++q) {
                left[q] = std::numeric_limits<float>::infinity();
                if (q >= batch.n || over[q] || !(batch.theta[q] > 0)) continue;
                noise[q] = mix(batch.key[q] + static_cast<uint64_t>(piece));
                left[q] = first_point(batch.theta[q], noise[q]);
            }
            const auto tell = [&](int level) {
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
            };
            const int64_t first = piece * kLanePiece, count = std::min(kLanePiece, e.vocab - first);
            for (int64_t c = 0; c < count; c += kBlock) {
                const LaneRows rows{nullptr, 0, first + c, std::min(kBlock, count - c), nullptr, nullptr};
                const int64_t before = state.further_count;
                e.kernels->lanes_weigh(ask, batch.wide, rows, est + c * lanes, state);
                for (int64_t i = before; i < state.further_count; ++i) state.further_place[i] += static_cast<int32_t>(c);
                tell(0);
            }
            const int64_t some = state.further_count;
            closer += some;
            if (some == 0) continue;
            const LaneRows rows{e.deeper[0].codes, e.deeper[0].bytes, 0, some, state.further, state.further_place};
            e.kernels->lanes_scan(rows, batch.further.data(), static_cast<int>(batch.further.size()), nullptr, nullptr, batch.lanes, est);
            int32_t *ids = state.further, *places = state.further_place;
            state.further = nullptr;
            for (int64_t r = 0; r < some; r += kBlock) {
                const LaneRows part{nullptr, 0, 0, std::min(kBlock, some - r), ids + r, places + r};
                e.kernels->lanes_weigh(ask, batch.closer_radius, part, est, state);
                tell(1);
            }
        }
        batch.closer += closer;
    });
}

// ---- one query ----

// The classes that were told of, in the order of the pieces, and the sums of the others.
Reported report_of(const BatchState& batch, int q) {
    Reported reported;
    reported.shift = batch.shift[q];
    size_t total = 0;
    for (int t = 0; t < batch.threads; ++t) total += batch.hits[t * batch.lanes + q].size();
    reported.hits.reserve(total);
    std::vector<size_t> at(batch.threads, 0);
    while (reported.hits.size() < total) {  // each thread's pieces ascend
        int from = -1;
        int64_t least = 0;
        for (int t = 0; t < batch.threads; ++t) {
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

// Sums relative to exp(to) from now on.
void Reported::rebase(double to) {
    const double fade = std::exp(shift - to);
    for (double* each : {&middle, &gap, &moved, &exact, &lost, &unit}) *each *= fade;
    shift = to;
}

// Rows for the normaliser, in float32 where that is close enough.
void score_narrow(const Executor& e, const BatchState& batch, int q, std::vector<Scored>& rows) {
    if (!batch.narrow[q]) return score(e, &batch.look.hidden[q * e.dim], rows, 1);
    const int64_t n = static_cast<int64_t>(rows.size());
    Scratch<int32_t> ids(n);
    Scratch<float> z(n);
    for (int64_t i = 0; i < n; ++i) ids[i] = static_cast<int32_t>(rows[i].id);
    e.kernels->dot_floats(e.weight, e.kind, e.dim, ids.data(), n, batch.floats.data() + q * e.dim, z.data());
    for (int64_t i = 0; i < n; ++i) rows[i].z = e.exact(z[i], rows[i].id);
}

// Scores the classes of some hits, which leave the sums.
std::vector<Scored> score_hits(const Executor& e, const BatchState& batch, const Question& question, int q, const std::vector<int32_t>& which,
                                         Reported& reported, bool narrow) {
    std::vector<Scored> rows;
    rows.reserve(which.size());
    for (const int32_t i : which) rows.push_back({reported.hits[i].id, 0});
    if (narrow) score_narrow(e, batch, q, rows);
    else score(e, &batch.look.hidden[q * e.dim], rows, 1);
    double top = -kInf;
    for (const Scored& s : rows) top = std::max(top, e.linked(s.z) * question.beta);
    if (top > reported.shift + kRebase) reported.rebase(top);
    for (size_t r = 0; r < rows.size(); ++r) {
        const LaneHit& hit = reported.hits[which[r]];
        reported.scored[which[r]] = 1;
        reported.exact += std::exp(e.linked(rows[r].z) * question.beta - reported.shift);
        if (hit.drawn < 0) continue;
        const double middle = reported.unit * hit.middle, gap = reported.unit * hit.gap;
        reported.middle -= middle;
        reported.gap -= gap;
        reported.moved -= middle * (static_cast<double>(hit.upper) - hit.est) * e.link_a * question.beta;
        reported.lost += middle + gap;
    }
    reported.rows += static_cast<int64_t>(rows.size());
    return rows;
}

// The k best, as in best_of.
bool best_reported(const Executor& e, const BatchState& batch, const Question& question, int q, Reported& reported, Answer& answer) {
    std::vector<int32_t> open;
    const size_t k = static_cast<size_t>(question.k);
    for (size_t i = 0; i < reported.hits.size(); ++i)
        if (!(reported.hits[i].upper < batch.tau[q])) open.push_back(static_cast<int32_t>(i));
    if (open.size() < k || static_cast<double>(open.size()) > 0.7 * static_cast<double>(e.vocab)) return false;
    const auto take = [&](const std::vector<int32_t>& which) {
        const std::vector<Scored> rows = score_hits(e, batch, question, q, which, reported);
        answer.best.insert(answer.best.end(), rows.begin(), rows.end());
        std::sort(answer.best.begin(), answer.best.end(), better);
        if (answer.best.size() > k) answer.best.resize(k);
    };
    std::nth_element(open.begin(), open.begin() + (k - 1), open.end(), [&](int32_t a, int32_t b) {
        const LaneHit &x = reported.hits[a], &y = reported.hits[b];
        return x.est > y.est || (x.est == y.est && x.id < y.id);
    });
    take({open.begin(), open.begin() + k});
    std::vector<std::pair<float, int32_t>> rivals;  // by their upper ends
    std::vector<int32_t> ids, places;
    for (size_t i = k; i < open.size(); ++i) {
        const LaneHit& hit = reported.hits[open[i]];
        if (hit.upper < answer.best.back().z) continue;
        if (hit.lane == 1 || !std::isfinite(hit.upper)) rivals.push_back({hit.upper, open[i]});
        else ids.push_back(hit.id), places.push_back(open[i]);
    }
    std::vector<float> est(ids.size()), rad(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) est[i] = reported.hits[places[i]].est;
    look_deeper(e, batch.look, q, 0, ids.data(), static_cast<int64_t>(ids.size()), est.data(), rad.data());
    answer.bytes += static_cast<double>(ids.size()) * static_cast<double>(e.deeper[0].bytes);
    for (size_t i = 0; i < ids.size(); ++i) {
        const float upper = std::min(reported.hits[places[i]].upper, est[i] + rad[i]);
        if (!(upper < answer.best.back().z)) rivals.push_back({upper, places[i]});
    }
    if (static_cast<double>(rivals.size()) > e.share * static_cast<double>(e.vocab)) return false;
    std::sort(rivals.begin(), rivals.end(), [&](const auto& a, const auto& b) {
        if (std::isnan(a.first) != std::isnan(b.first)) return std::isnan(a.first);
        return a.first > b.first || (!(a.first < b.first) && reported.hits[a.second].id < reported.hits[b.second].id);
    });
    for (size_t at = 0; at < rivals.size() && !(rivals[at].first < answer.best.back().z);) {
        std::vector<int32_t> some;
        for (; at < rivals.size() && some.size() < 32 && !(rivals[at].first < answer.best.back().z); ++at) some.push_back(rivals[at].second);
        take(some);
    }
    return true;
}

// The normaliser where its interval is too wide: what is widest is scored, of the rest the points with the least marks.
bool bet_reported(const Executor& e, const BatchState& batch, const Question& question, int q, Reported& reported, Interval& lse) {
    if (reported.unit != 1) return false;  // the pass knew nothing of what matters
    const double odds = 2 / question.delta, theta = batch.theta[q];
    // Points fall where float32 puts them.
    const double guess = reported.exact + reported.middle, moved = 0x1p-24 * kFarthest * theta * static_cast<double>(e.vocab);
    const double aim = batch.aim[q] - 2 * moved / guess;
    if (!(aim > 0.5 * batch.aim[q])) return false;
    const double edge = aim * guess / (std::log(odds) + 0.8);
    std::vector<int32_t> wide;
    struct Point {
        double mark;
        int32_t hit;
    };
    std::vector<Point> points;
    // Where the sum is so much larger than the sample said that many points would fall on one gap, all of them are thinned out:
    // of those that fell before, the ones with the least marks stay.
    const double apart = edge > kMostThin * theta ? edge : theta, kept = theta / apart;
    uint64_t noise = mix(batch.key[q] ^ 0x5851F42D4C957F2Du);
    const auto uniform = [&] { return (static_cast<double>(mix(noise += 0x9E3779B97F4A7C15u) >> 11) + 0.5) * 0x1p-53; };
    for (size_t i = 0; i < reported.hits.size(); ++i) {
        LaneHit& hit = reported.hits[i];
        if (reported.scored[i]) continue;
        if (hit.drawn < 0 && !(hit.gap < edge)) {  // whoever was told of for a point alone stays: who stays must not go by the draws
            wide.push_back(static_cast<int32_t>(i));
            continue;
        }
        if (hit.drawn < 0) {  // back among the others
            hit.drawn = 0;
            reported.middle += hit.middle;
            reported.gap += hit.gap;
            for (double left = -apart * std::log(uniform()); left < hit.gap; left -= apart * std::log(uniform()))
                points.push_back({uniform(), static_cast<int32_t>(i)});
            continue;
        }
        for (int32_t d = 0; d < hit.drawn; ++d) {
            const double mark = uniform();
            if (mark < kept) points.push_back({mark / kept, static_cast<int32_t>(i)});
        }
    }
    if (static_cast<double>(wide.size()) > e.share * static_cast<double>(e.vocab)) return false;
    score_hits(e, batch, question, q, wide, reported, true);
    reported.middle = std::max(reported.middle, 0.0);
    reported.gap = std::max(reported.gap, 0.0);
    const double known = reported.exact + reported.middle, total = reported.gap * (1 + 0x1p-16) + 0x1p-16 * reported.middle;
    if (out_of_range(reported.exact, known) || !(total < 1e30)) return false;
    const double shift = batch.shift[q], fixed = question.eps - batch.aim[q];
    if (!(total > 0)) return lse = {shift + std::log(known), fixed}, true;
    std::vector<double> drawn;
    std::vector<int32_t> taken, times;
    const double all = static_cast<double>(points.size());
    double sum = 0, squares = 0, part = 0, wanted = kStart * draws_for(odds, aim * known / total, kScatter);
    for (;;) {  // those with marks below the part that is wanted, and not below the last one's
        const double next = wanted < all ? wanted / all : 1;
        std::vector<Scored> rows;
        times.clear();
        taken.clear();
        for (const Point& point : points) {
            if (point.mark < part || !(point.mark < next)) continue;
            if (taken.empty() || taken.back() != point.hit) {
                taken.push_back(point.hit);
                times.push_back(0);
                rows.push_back({reported.hits[point.hit].id, 0});
            }
            ++times.back();
        }
        score_narrow(e, batch, q, rows);
        reported.rows += static_cast<int64_t>(rows.size());
        for (size_t r = 0; r < rows.size(); ++r) {
            const LaneHit& hit = reported.hits[taken[r]];
            const double x = (std::exp(e.linked(rows[r].z) * question.beta - shift) - hit.middle) / hit.gap;
            drawn.insert(drawn.end(), times[r], x);
            sum += x * times[r];
            squares += x * x * times[r];
        }
        part = next;
        const double n = std::max(1.0, static_cast<double>(drawn.size())), middle = known + total * sum / n;
        const double above = (middle * std::exp(aim) - known) / total, below = (middle * std::exp(-aim) - known) / total;
        const double down = 1 / (kMost - above), up = 1 / (kMost + below);
        const bool not_above = above >= kMost || wins(drawn, odds, [&](double x) { return (above - x) * down; });
        const bool not_below = below <= -kMost || wins(drawn, odds, [&](double x) { return (x - below) * up; });
        if (not_above && not_below) return lse = {shift + std::log(middle), question.eps}, true;
        if (!(part < 1)) return false;
        wanted = std::max(1.05 * draws_for(odds, aim * middle / total, squares / n), 1.1 * part * all + 16);
    }
}

bool resolve_reported(const Executor& e, const BatchState& batch, const Question& question, int q, Answer& answer) {
    Reported reported = report_of(batch, q);
    answer.best.clear();
    bool done = question.k == 0 || best_reported(e, batch, question, q, reported, answer);
    Interval lse{0, kInf};
    if (done) {
        std::vector<int32_t> out;  // of the sums already
        for (size_t i = 0; i < reported.hits.size(); ++i)
            if (reported.hits[i].drawn < 0 && !reported.scored[i]) out.push_back(static_cast<int32_t>(i));
        const bool closed = question.eps < kInf || out.size() <= kMostClosed;  // nothing wide is left open, or a bet follows
        if (closed && !(question.eps < kInf)) score_hits(e, batch, question, q, out, reported);
        const double shift = reported.shift, off = float_error(e, shift, question.beta) + dot_error(e, &batch.look.hidden[q * e.dim]);
        const double slop = 0x1p-12 * (reported.middle + reported.gap) + 0x1p-18 * reported.lost, middle = std::max(0.0, reported.middle), known = reported.exact + middle;
        double low = reported.exact, high = known + std::max(0.0, reported.gap) + slop;
        if (middle > slop) low += (middle - slop) * std::exp(-std::max(0.0, reported.moved) * (1 + 0x1p-12) / (middle - slop));
        double error = kInf;
        if (closed && known > 0 && low > 0) error = std::max(std::log(high / known), std::log(known / low)) + off;
        lse = {shift + std::log(known), error < 20 ? error : kInf};
        if (!(error < 20)) lse.value = shift + std::log(reported.exact > 0 ? reported.exact : 1);
        if (question.eps < kInf && (!out.empty() || !(lse.error <= question.eps))) done = bet_reported(e, batch, question, q, reported, lse);
    }
    answer.rows += reported.rows;
    answer.bytes += static_cast<double>(reported.rows) * e.row_bytes();
    answer.lse = lse.value;
    answer.error = lse.error;
    answer.proved = answer.dense = false;
    answer.proved = done;
    return done;
}

}  // namespace headlong
