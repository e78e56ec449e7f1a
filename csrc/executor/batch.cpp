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
#include "kernels/lanes.h"

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

// Whether a call is one for ask_lanes: sure intervals from codes of the coordinates that lead, and finer ones behind them.
bool Executor::side_by_side(const Question& question, int64_t count) const {
    if (!has_preview || count < 2 || question.mask != nullptr || budget > 0 || link.form != 0 || !(link_a > 0)) return false;
    if (preview.codes == nullptr || !preview.rotated || rotation == nullptr || deeper.size() != 1 || !deeper[0].adds) return false;
    if (vocab < kLeastClasses || question.k > kMostBest || preview.terms.empty()) return false;
    if (question.eps < kInf && !(question.delta > 0)) return false;
    const auto whole = [](const Segment& seg) { return seg.words > 0; };
    for (const Term& term : preview.terms)
        if (term.likely != 1) return false;
    return std::all_of(preview.segments.begin(), preview.segments.end(), whole) &&
           std::all_of(deeper[0].segments.begin(), deeper[0].segments.end(),
                       [&](const Segment& seg) { return whole(seg) && seg.words % 4 == 0; });
}

// Answers what it can; returns the rows that are left.
std::vector<int64_t> Executor::ask_lanes(const double* hidden, int64_t count, const Question& question,
                                         std::vector<Answer>& answers) const {
    std::vector<int64_t> left;
    const auto few = [](const Segment& seg) { return seg.bits < 8; };
    const bool many = 4 * preview.words > kManyCodes && std::any_of(preview.segments.begin(), preview.segments.end(), few);
    const int64_t least = many ? kShareCodes : 0;
    for (int64_t first = 0, stop = 0; first < count; first = stop) {
        stop = first + block_of(count - first, question.eps < kInf ? kFilled : kFilledByIds, least);
        if (stop == first) {
            for (; stop < count; ++stop) left.push_back(stop);
            break;
        }
        Crowd crowd;
        crowd.n = static_cast<int>(stop - first);
        crowd.lanes = static_cast<int>(lanes_of(crowd.n));
        crowd.threads = crowd.look.threads = question.threads;
        crowd.look.source = &preview;
        crowd.look.rows.resize(crowd.n);
        std::iota(crowd.look.rows.begin(), crowd.look.rows.end(), first);
        crowd.look.hidden.resize(crowd.n * dim);
        std::copy_n(hidden + first * dim, crowd.n * dim, crowd.look.hidden.data());
        prepare_lanes(crowd);
        sample_lanes(crowd, question);
        pass_lanes(crowd);
        const double shared = preview.bytes + static_cast<double>(crowd.closer.load()) * static_cast<double>(deeper[0].bytes);
        std::vector<uint8_t> done(crowd.n, 0);
        Turns<int> next;
        run_parallel(std::min(crowd.threads, crowd.n), [&](int) {
            for (int q = next++; q < crowd.n; q = next++) {
                Answer& answer = answers[first + q];
                answer.bytes += shared / crowd.n;
                const bool asked = !crowd.sampled[q].empty() && (crowd.theta[q] > 0 || !(question.eps < kInf));
                done[q] = asked && crowd.told[q] <= crowd.most_told && resolve_lane(crowd, question, q, answer);
            }
        });
        for (int q = 0; q < crowd.n; ++q)
            if (!done[q]) left.push_back(first + q);
        if (2 * std::accumulate(done.begin(), done.end(), 0) >= crowd.n) continue;
        for (; stop < count; ++stop) left.push_back(stop);  // the others are taken to be alike
        break;
    }
    return left;
}

// How many classes a query may be told of before it is better off alone: as many as would be scored there, and as many again
// for points, unless the promise can never want them: draws_for a gap as wide as the whole sum and terms at its ends.
double Executor::most_told(const Question& question) const {
    const double rows = share * static_cast<double>(vocab) + 4096;
    if (!(question.eps < kInf)) return rows;
    return rows + std::min(rows, kMore * draws_for(2 / question.delta, std::min(question.eps, 0.5), 1));
}

// Reads the sample, and says of every query what its classes are asked in the pass.
void Executor::sample_lanes(Crowd& crowd, const Question& question) const {
    const int64_t lanes = crowd.lanes, runs = kLanePiece / kLaneRun;
    crowd.pieces = (vocab + kLanePiece - 1) / kLanePiece;
    for (int64_t p = 0; p < crowd.pieces; p += kEvery) crowd.order.push_back(p);
    crowd.sample = static_cast<int64_t>(crowd.order.size());
    for (int64_t p = 0; p < crowd.pieces; ++p)
        if (p % kEvery != 0) crowd.order.push_back(p);
    crowd.est.resize(crowd.sample * kLanePiece * lanes);
    crowd.largest.resize(crowd.sample * runs * lanes);
    for (Scratch<float>* each : {&crowd.shift, &crowd.octaves, &crowd.tau, &crowd.edge, &crowd.worth, &crowd.theta}) {
        each->resize(lanes);
        std::fill_n(each->data(), lanes, each == &crowd.tau || each == &crowd.edge ? std::numeric_limits<float>::infinity() : 0.f);
    }
    // Where no bet takes the widest gaps out of the sums, those go that a sum of floats would not hold.
    if (!(question.eps < kInf)) std::fill_n(crowd.edge.data(), crowd.n, kMostGap);
    const float closer = static_cast<float>(deeper[0].bytes * lanes), row = static_cast<float>(dim);
    crowd.ask = {crowd.n, crowd.lanes, question.eps < kInf, link, static_cast<float>(question.beta), 0x1p-11f, 0.5f, 0.1f + closer / (40 * row),
                 crowd.octaves.data(), crowd.tau.data(), crowd.edge.data(), crowd.worth.data(), crowd.theta.data()};
    crowd.aim.assign(crowd.n, 0);
    crowd.key.assign(crowd.n, 0);
    crowd.narrow.assign(crowd.n, 0);
    crowd.floats.resize(crowd.n * dim);
    crowd.sampled.resize(crowd.n);
    crowd.most_told = static_cast<int64_t>(most_told(question));
    Turns<int64_t> next;
    run_parallel(crowd.threads, [&](int) {
        for (int64_t s = next++; s < crowd.sample; s = next++) {
            float* est = crowd.est.data() + s * kLanePiece * lanes;
            scan_lanes(crowd, crowd.order[s], est);
            const int64_t count = std::min(kLanePiece, vocab - crowd.order[s] * kLanePiece);
            float* largest = crowd.largest.data() + s * runs * lanes;
            std::fill_n(largest, runs * lanes, -std::numeric_limits<float>::infinity());
            kernels->lanes_largest(est, count, crowd.lanes, largest);
        }
    });
    Turns<int> turn;
    run_parallel(std::min(crowd.threads, crowd.n), [&](int) {
        for (int q = turn++; q < crowd.n; q = turn++) start_lane(crowd, question, q);
    });
    if (!(question.eps < kInf)) return;
    Scratch<double> sums(crowd.sample * lanes);
    std::fill_n(sums.data(), sums.size(), 0.0);
    next.store(0);
    run_parallel(crowd.threads, [&](int) {
        for (int64_t s = next++; s < crowd.sample; s = next++)
            kernels->lanes_sums(crowd.ask, crowd.est.data() + s * kLanePiece * lanes,
                                std::min(kLanePiece, vocab - crowd.order[s] * kLanePiece), crowd.lanes, sums.data() + s * lanes);
    });
    for (int q = 0; q < crowd.n; ++q) {
        std::vector<double> each(crowd.sample);
        for (int64_t s = 0; s < crowd.sample; ++s) each[s] = sums[s * lanes + q];
        aim_lane(crowd, question, q, each);
    }
}

// Estimates of a piece, [class][lanes].
void Executor::scan_lanes(const Crowd& crowd, int64_t piece, float* est) const {
    const int64_t first = piece * kLanePiece, stop = std::min(vocab, first + kLanePiece);
    const float* add = crowd.terms.data() + crowd.lanes;
    for (int64_t c = first; c < stop; c += kBlock) {
        const LaneRows rows{preview.codes + c * preview.words * 4, 0, c, std::min(kBlock, stop - c), nullptr, nullptr};
        kernels->lanes_scan(rows, crowd.first.data(), static_cast<int>(crowd.first.size()), preview.base, add, crowd.lanes,
                            est + (c - first) * crowd.lanes);
    }
}

// The likeliest classes of the sample, one of a run of 16 at most, are scored: the worst of k of them is a threshold, the best one the
// shift of all exponents.
void Executor::start_lane(Crowd& crowd, const Question& question, int q) const {
    const int64_t lanes = crowd.lanes, runs = crowd.sample * (kLanePiece / kLaneRun);
    const size_t wanted = static_cast<size_t>(std::max<int64_t>(8, question.k));
    std::vector<std::pair<float, int64_t>> best(runs);
    for (int64_t r = 0; r < runs; ++r) best[r] = {-crowd.largest[r * lanes + q], r};
    std::nth_element(best.begin(), best.begin() + (wanted - 1), best.end());
    std::vector<Scored>& rows = crowd.sampled[q];
    for (size_t i = 0; i < wanted; ++i) {
        const int64_t at = best[i].second * kLaneRun, piece = crowd.order[at / kLanePiece], id = piece * kLanePiece + at % kLanePiece;
        if (!(std::fabs(best[i].first) < 1e30f)) return rows.clear();  // left to the others' way
        int64_t found = 0;
        while (found + 1 < kLaneRun && crowd.est[(at + found) * lanes + q] != -best[i].first) ++found;
        rows.push_back({id + found, 0});
    }
    score(&crowd.look.hidden[q * dim], rows, 1);
    std::vector<double> z;
    for (const Scored& s : rows) z.push_back(s.z);
    std::sort(z.begin(), z.end(), std::greater<double>());
    if (!(std::fabs(z[0]) < 1e30)) return rows.clear();
    crowd.shift[q] = static_cast<float>(linked(z[0]) * question.beta);
    crowd.octaves[q] = static_cast<float>((crowd.shift[q] - link_b * question.beta) * 1.4426950408889634);
    if (question.k > 0) {
        const float below = static_cast<float>(z[question.k - 1]);
        crowd.tau[q] = below > z[question.k - 1] ? std::nextafterf(below, -std::numeric_limits<float>::infinity()) : below;
    }
    crowd.key[q] = key_of(crowd.look, q, question);
}

// About how large the sum is, and so what a row is worth: a gap adds gap * price to the draws. Words are often in the order of their
// frequency, so that the pieces between two of the sample are taken to lie between them. A guess that is too low costs points.
void Executor::aim_lane(Crowd& crowd, const Question& question, int q, std::vector<double>& sums) const {
    if (crowd.sampled[q].empty()) return;
    double fixed = float_error(crowd.shift[q], question.beta) + dot_error(&crowd.look.hidden[q * dim]);
    double square = 0;
    for (int64_t j = 0; j < dim; ++j) {
        const double x = crowd.look.hidden[q * dim + j];
        crowd.floats[q * dim + j] = static_cast<float>(x);
        square += x * x;
    }
    const double narrow = float_unit(dim) * most_norm * std::sqrt(square) * link_a * question.beta;
    crowd.narrow[q] = narrow < 0.1 * question.eps;
    if (crowd.narrow[q]) fixed += narrow;
    crowd.ask.slop = std::max(crowd.ask.slop, static_cast<float>(0x1p-11 + 2 * fixed));
    double all = 0;
    for (const Scored& s : crowd.sampled[q]) {
        const double known = std::exp(linked(s.z) * question.beta - crowd.shift[q]);
        double& sum = sums[s.id / kLanePiece / kEvery];
        sum = std::max(0.0, sum - known);
        all += known;
    }
    for (int64_t p = 0; p < crowd.pieces; ++p) {
        const double here = sums[p / kEvery], next = sums[std::min(crowd.sample - 1, p / kEvery + 1)];
        const double part = static_cast<double>(p % kEvery) / static_cast<double>(kEvery);
        all += here > 0 && next > 0 ? 0.7 * here * std::pow(next / here, part) : 0;
    }
    const double price = (std::log(2 / question.delta) + 0.8) / all;
    crowd.aim[q] = question.eps - fixed;
    if (!(crowd.aim[q] > 0)) return;
    crowd.theta[q] = static_cast<float>(crowd.aim[q] / price / kMore);
    crowd.edge[q] = crowd.theta[q];
    crowd.worth[q] = static_cast<float>(price / crowd.aim[q]);
}

void Executor::pass_lanes(Crowd& crowd) const {
    const int64_t lanes = crowd.lanes;
    crowd.sums.resize(crowd.pieces * 3 * lanes);
    std::fill_n(crowd.sums.data(), crowd.sums.size(), 0.0);
    crowd.hits.resize(crowd.threads * lanes);
    crowd.told = std::vector<std::atomic<int64_t>>(lanes);
    Turns<int64_t> next;
    run_parallel(crowd.threads, [&](int thread) {
        // A query that is told of more classes than it may be is asked about no more of them, on this thread.
        LaneLook ask = crowd.ask;
        Scratch<float> tau(lanes), edge(lanes);
        std::copy_n(crowd.tau.data(), lanes, tau.data());
        std::copy_n(crowd.edge.data(), lanes, edge.data());
        ask.tau = tau.data();
        ask.edge = edge.data();
        std::vector<uint8_t> over(lanes, 0);
        Scratch<float> own(kLanePiece * lanes), left(lanes);
        Scratch<LaneHit> found(kBlock * lanes);
        Scratch<int32_t> further(2 * kLanePiece);
        std::vector<uint64_t> noise(lanes);
        std::vector<LaneHit>* hits = &crowd.hits[thread * lanes];
        int64_t closer = 0;
        // Pieces are taken in their own order, so that each thread's classes are told of in theirs.
        for (int64_t piece = next++; piece < crowd.pieces; piece = next++) {
            float* est = own.data();
            if (piece % kEvery == 0) est = crowd.est.data() + piece / kEvery * kLanePiece * lanes;
            else scan_lanes(crowd, piece, est);
            double* sums = crowd.sums.data() + piece * 3 * lanes;
            LaneState state{sums, sums + lanes, sums + 2 * lanes, left.data(), noise.data(), found.data(), 0,
                            further.data(), further.data() + kLanePiece, 0};
            for (int64_t q = 0; q < lanes; ++q) {
                left[q] = std::numeric_limits<float>::infinity();
                if (q >= crowd.n || over[q] || !(crowd.theta[q] > 0)) continue;
                noise[q] = mix(crowd.key[q] + static_cast<uint64_t>(piece));
                left[q] = first_point(crowd.theta[q], noise[q]);
            }
            const auto tell = [&](int level) {
                for (int64_t i = 0; i < state.hit_count; ++i) {
                    LaneHit& hit = found[i];
                    const int32_t q = hit.lane;
                    if (over[q]) continue;
                    hit.lane = level;
                    hits[q].push_back(hit);
                    if (++crowd.told[q] <= crowd.most_told) continue;
                    over[q] = 1;
                    tau[q] = edge[q] = left[q] = std::numeric_limits<float>::infinity();
                    std::vector<LaneHit>().swap(hits[q]);
                }
                state.hit_count = 0;
            };
            const int64_t first = piece * kLanePiece, count = std::min(kLanePiece, vocab - first);
            for (int64_t c = 0; c < count; c += kBlock) {
                const LaneRows rows{nullptr, 0, first + c, std::min(kBlock, count - c), nullptr, nullptr};
                const int64_t before = state.further_count;
                kernels->lanes_weigh(ask, crowd.wide, rows, est + c * lanes, state);
                for (int64_t i = before; i < state.further_count; ++i) state.further_place[i] += static_cast<int32_t>(c);
                tell(0);
            }
            const int64_t some = state.further_count;
            closer += some;
            if (some == 0) continue;
            const LaneRows rows{deeper[0].codes, deeper[0].bytes, 0, some, state.further, state.further_place};
            kernels->lanes_scan(rows, crowd.further.data(), static_cast<int>(crowd.further.size()), nullptr, nullptr, crowd.lanes, est);
            int32_t *ids = state.further, *places = state.further_place;
            state.further = nullptr;
            for (int64_t r = 0; r < some; r += kBlock) {
                const LaneRows part{nullptr, 0, 0, std::min(kBlock, some - r), ids + r, places + r};
                kernels->lanes_weigh(ask, crowd.closer_radius, part, est, state);
                tell(1);
            }
        }
        crowd.closer += closer;
    });
}

// ---- one query ----

// The classes that were told of, in the order of the pieces, and the sums of the others.
Told Executor::told_of(const Crowd& crowd, int q) const {
    Told told;
    told.shift = crowd.shift[q];
    size_t total = 0;
    for (int t = 0; t < crowd.threads; ++t) total += crowd.hits[t * crowd.lanes + q].size();
    told.hits.reserve(total);
    std::vector<size_t> at(crowd.threads, 0);
    while (told.hits.size() < total) {  // each thread's pieces ascend
        int from = -1;
        int64_t least = 0;
        for (int t = 0; t < crowd.threads; ++t) {
            const std::vector<LaneHit>& own = crowd.hits[t * crowd.lanes + q];
            if (at[t] == own.size() || (from >= 0 && own[at[t]].id / kLanePiece >= least)) continue;
            from = t;
            least = own[at[t]].id / kLanePiece;
        }
        const std::vector<LaneHit>& own = crowd.hits[from * crowd.lanes + q];
        while (at[from] < own.size() && own[at[from]].id / kLanePiece == least) told.hits.push_back(own[at[from]++]);
    }
    told.scored.assign(total, 0);
    for (int64_t p = 0; p < crowd.pieces; ++p) {
        const double* sums = crowd.sums.data() + p * 3 * crowd.lanes + q;
        told.middle += sums[0];
        told.gap += sums[crowd.lanes];
        told.moved += sums[2 * crowd.lanes];
    }
    return told;
}

// Sums relative to exp(to) from now on.
void Told::rebase(double to) {
    const double fade = std::exp(shift - to);
    for (double* each : {&middle, &gap, &moved, &exact, &lost, &unit}) *each *= fade;
    shift = to;
}

// Rows for the normaliser, in float32 where that is close enough.
void Executor::score_narrow(const Crowd& crowd, int q, std::vector<Scored>& rows) const {
    if (!crowd.narrow[q]) return score(&crowd.look.hidden[q * dim], rows, 1);
    const int64_t n = static_cast<int64_t>(rows.size());
    Scratch<int32_t> ids(n);
    Scratch<float> z(n);
    for (int64_t i = 0; i < n; ++i) ids[i] = static_cast<int32_t>(rows[i].id);
    kernels->dot_floats(weight, kind, dim, ids.data(), n, crowd.floats.data() + q * dim, z.data());
    for (int64_t i = 0; i < n; ++i) rows[i].z = exact(z[i], rows[i].id);
}

// Scores the classes of some hits, which leave the sums.
std::vector<Scored> Executor::score_hits(const Crowd& crowd, const Question& question, int q, const std::vector<int32_t>& which,
                                         Told& told, bool narrow) const {
    std::vector<Scored> rows;
    rows.reserve(which.size());
    for (const int32_t i : which) rows.push_back({told.hits[i].id, 0});
    if (narrow) score_narrow(crowd, q, rows);
    else score(&crowd.look.hidden[q * dim], rows, 1);
    double top = -kInf;
    for (const Scored& s : rows) top = std::max(top, linked(s.z) * question.beta);
    if (top > told.shift + kRebase) told.rebase(top);
    for (size_t r = 0; r < rows.size(); ++r) {
        const LaneHit& hit = told.hits[which[r]];
        told.scored[which[r]] = 1;
        told.exact += std::exp(linked(rows[r].z) * question.beta - told.shift);
        if (hit.drawn < 0) continue;
        const double middle = told.unit * hit.middle, gap = told.unit * hit.gap;
        told.middle -= middle;
        told.gap -= gap;
        told.moved -= middle * (static_cast<double>(hit.upper) - hit.est) * link_a * question.beta;
        told.lost += middle + gap;
    }
    told.rows += static_cast<int64_t>(rows.size());
    return rows;
}

// The k best, as in best_of.
bool Executor::best_of_lane(const Crowd& crowd, const Question& question, int q, Told& told, Answer& answer) const {
    std::vector<int32_t> open;
    const size_t k = static_cast<size_t>(question.k);
    for (size_t i = 0; i < told.hits.size(); ++i)
        if (!(told.hits[i].upper < crowd.tau[q])) open.push_back(static_cast<int32_t>(i));
    if (open.size() < k || static_cast<double>(open.size()) > 0.7 * static_cast<double>(vocab)) return false;
    const auto take = [&](const std::vector<int32_t>& which) {
        const std::vector<Scored> rows = score_hits(crowd, question, q, which, told);
        answer.best.insert(answer.best.end(), rows.begin(), rows.end());
        std::sort(answer.best.begin(), answer.best.end(), better);
        if (answer.best.size() > k) answer.best.resize(k);
    };
    std::nth_element(open.begin(), open.begin() + (k - 1), open.end(), [&](int32_t a, int32_t b) {
        const LaneHit &x = told.hits[a], &y = told.hits[b];
        return x.est > y.est || (x.est == y.est && x.id < y.id);
    });
    take({open.begin(), open.begin() + k});
    std::vector<std::pair<float, int32_t>> rivals;  // by their upper ends
    std::vector<int32_t> ids, places;
    for (size_t i = k; i < open.size(); ++i) {
        const LaneHit& hit = told.hits[open[i]];
        if (hit.upper < answer.best.back().z) continue;
        if (hit.lane == 1 || !std::isfinite(hit.upper)) rivals.push_back({hit.upper, open[i]});
        else ids.push_back(hit.id), places.push_back(open[i]);
    }
    std::vector<float> est(ids.size()), rad(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) est[i] = told.hits[places[i]].est;
    look_deeper(crowd.look, q, 0, ids.data(), static_cast<int64_t>(ids.size()), est.data(), rad.data());
    answer.bytes += static_cast<double>(ids.size()) * static_cast<double>(deeper[0].bytes);
    for (size_t i = 0; i < ids.size(); ++i) {
        const float upper = std::min(told.hits[places[i]].upper, est[i] + rad[i]);
        if (!(upper < answer.best.back().z)) rivals.push_back({upper, places[i]});
    }
    if (static_cast<double>(rivals.size()) > share * static_cast<double>(vocab)) return false;
    std::sort(rivals.begin(), rivals.end(), [&](const auto& a, const auto& b) {
        if (std::isnan(a.first) != std::isnan(b.first)) return std::isnan(a.first);
        return a.first > b.first || (!(a.first < b.first) && told.hits[a.second].id < told.hits[b.second].id);
    });
    for (size_t at = 0; at < rivals.size() && !(rivals[at].first < answer.best.back().z);) {
        std::vector<int32_t> some;
        for (; at < rivals.size() && some.size() < 32 && !(rivals[at].first < answer.best.back().z); ++at) some.push_back(rivals[at].second);
        take(some);
    }
    return true;
}

// The normaliser where its interval is too wide: what is widest is scored, of the rest the points with the least marks.
bool Executor::bet_lane(const Crowd& crowd, const Question& question, int q, Told& told, Interval& lse) const {
    if (told.unit != 1) return false;  // the pass knew nothing of what matters
    const double odds = 2 / question.delta, theta = crowd.theta[q];
    // Points fall where float32 puts them.
    const double guess = told.exact + told.middle, moved = 0x1p-24 * kFarthest * theta * static_cast<double>(vocab);
    const double aim = crowd.aim[q] - 2 * moved / guess;
    if (!(aim > 0.5 * crowd.aim[q])) return false;
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
    uint64_t noise = mix(crowd.key[q] ^ 0x5851F42D4C957F2Du);
    const auto uniform = [&] { return (static_cast<double>(mix(noise += 0x9E3779B97F4A7C15u) >> 11) + 0.5) * 0x1p-53; };
    for (size_t i = 0; i < told.hits.size(); ++i) {
        LaneHit& hit = told.hits[i];
        if (told.scored[i]) continue;
        if (hit.drawn < 0 && !(hit.gap < edge)) {  // whoever was told of for a point alone stays: who stays must not go by the draws
            wide.push_back(static_cast<int32_t>(i));
            continue;
        }
        if (hit.drawn < 0) {  // back among the others
            hit.drawn = 0;
            told.middle += hit.middle;
            told.gap += hit.gap;
            for (double left = -apart * std::log(uniform()); left < hit.gap; left -= apart * std::log(uniform()))
                points.push_back({uniform(), static_cast<int32_t>(i)});
            continue;
        }
        for (int32_t d = 0; d < hit.drawn; ++d) {
            const double mark = uniform();
            if (mark < kept) points.push_back({mark / kept, static_cast<int32_t>(i)});
        }
    }
    if (static_cast<double>(wide.size()) > share * static_cast<double>(vocab)) return false;
    score_hits(crowd, question, q, wide, told, true);
    told.middle = std::max(told.middle, 0.0);
    told.gap = std::max(told.gap, 0.0);
    const double known = told.exact + told.middle, total = told.gap * (1 + 0x1p-16) + 0x1p-16 * told.middle;
    if (out_of_range(told.exact, known) || !(total < 1e30)) return false;
    const double shift = crowd.shift[q], fixed = question.eps - crowd.aim[q];
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
                rows.push_back({told.hits[point.hit].id, 0});
            }
            ++times.back();
        }
        score_narrow(crowd, q, rows);
        told.rows += static_cast<int64_t>(rows.size());
        for (size_t r = 0; r < rows.size(); ++r) {
            const LaneHit& hit = told.hits[taken[r]];
            const double x = (std::exp(linked(rows[r].z) * question.beta - shift) - hit.middle) / hit.gap;
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

bool Executor::resolve_lane(const Crowd& crowd, const Question& question, int q, Answer& answer) const {
    Told told = told_of(crowd, q);
    answer.best.clear();
    bool done = question.k == 0 || best_of_lane(crowd, question, q, told, answer);
    Interval lse{0, kInf};
    if (done) {
        std::vector<int32_t> out;  // of the sums already
        for (size_t i = 0; i < told.hits.size(); ++i)
            if (told.hits[i].drawn < 0 && !told.scored[i]) out.push_back(static_cast<int32_t>(i));
        const bool closed = question.eps < kInf || out.size() <= kMostClosed;  // nothing wide is left open, or a bet follows
        if (closed && !(question.eps < kInf)) score_hits(crowd, question, q, out, told);
        const double shift = told.shift, off = float_error(shift, question.beta) + dot_error(&crowd.look.hidden[q * dim]);
        const double slop = 0x1p-12 * (told.middle + told.gap) + 0x1p-18 * told.lost, middle = std::max(0.0, told.middle), known = told.exact + middle;
        double low = told.exact, high = known + std::max(0.0, told.gap) + slop;
        if (middle > slop) low += (middle - slop) * std::exp(-std::max(0.0, told.moved) * (1 + 0x1p-12) / (middle - slop));
        double error = kInf;
        if (closed && known > 0 && low > 0) error = std::max(std::log(high / known), std::log(known / low)) + off;
        lse = {shift + std::log(known), error < 20 ? error : kInf};
        if (!(error < 20)) lse.value = shift + std::log(told.exact > 0 ? told.exact : 1);
        if (question.eps < kInf && (!out.empty() || !(lse.error <= question.eps))) done = bet_lane(crowd, question, q, told, lse);
    }
    answer.rows += told.rows;
    answer.bytes += static_cast<double>(told.rows) * row_bytes();
    answer.lse = lse.value;
    answer.error = lse.error;
    answer.proved = answer.dense = false;
    answer.proved = done;
    return done;
}

}  // namespace headlong
