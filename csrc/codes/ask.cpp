// What is asked of codes: one scan for all queries, then the ids and normalisers of each; a full scan for those that it leaves too open.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <unordered_map>

#include "codes/pass.h"
#include "executor/largest.h"
#include "executor/verbs.h"
#include "normaliser/draw_points.h"
#include "runtime/scratch.h"

namespace headlong {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr float kNarrow = 0.5f;        // of radii that may fail: how far below its estimate a class is expected to be at worst
constexpr int64_t kHeads = 128;        // classes of a query that are scored exactly for its normaliser, about
constexpr int64_t kHeadsOfEntropy = 320;
constexpr int64_t kHeldBytes = int64_t{1} << 25;  // by the queries that are answered at once, about; an interrupt waits while they are prepared
constexpr double kMostPoints = 2048;   // that fall during a scan: who needs more draws them later
constexpr double kMostOfEntropy = 8192;
constexpr double kOfSquares = 0.4;       // of the guess of the mean of X^2, for an entropy: it is too large
constexpr double kSure = 0.8;           // of the others' mass by some of the tiles
constexpr double kSureOfHeads = 0.5;    // of the heads' but the largest two, which may be alone
constexpr double kMorePoints = 1.15;   // than are expected to be needed: to draw later takes a scan's time for each
constexpr float kMuchLess = 0.95f;     // of a rate: what other threads are told
constexpr double kBelow = 1 - 0x1p-10;  // of what is known during a scan: roundings of sums in another order
constexpr int kMostRedrawn = 16;        // draws of one that may be beyond a nucleus: each halves what is left to draw from, about
constexpr int64_t kPilotTiles = 16;    // at the least, and one of so many at the most: where the edge of the heads is learned

// A class that may have the largest key of a draw, and what its key is at the most.
struct KeyHit {
    int32_t id;
    uint32_t draw;
    float upper;
};

// What one thread knows of the ids of one query: hits, and the k largest lower ends, the least in front.
struct alignas(64) Found {
    std::vector<Hit> hits;
    std::vector<float> lower;
    std::vector<CodeHead> heads;
    double mass = 0;  // of these heads
    std::vector<CodeDraw> draws;
    std::vector<KeyHit> keys;
    bool flooded = false;  // a tile whose gaps are far beyond what some of the tiles showed: its points were not drawn
};

// All that is asked of a batch and learned during its scan.
struct Scan {
    const Codes& codes;
    const Question& question;
    const PreparedCodes& all;
    int threads;
    bool ids, sums;
    int keys;  // draws of each query
    Exponent exponent;
    std::vector<ScanRadii> near{}, wide{};  // of a group: for the k best, and for all classes at once
    std::vector<CodeMasses> masses{};
    std::vector<Found> found{};  // [thread][query]
    std::vector<std::atomic<float>> threshold, rate;  // of each query, as far as the scan is: the k-th largest lower end; of points
    std::vector<std::atomic<float>> key;              // [query][draw]: the largest lower end of a key
    Scratch<float> estimates{};                       // [query][class], where draws go by mass

    Found& own_found(int64_t thread, int64_t q) { return found[thread * static_cast<int64_t>(all.queries.size()) + q]; }

    void raise(Found& own, int64_t q, float lower) {
        const auto greater = std::greater<float>();
        if (static_cast<int64_t>(own.lower.size()) < question.k) {
            own.lower.push_back(lower);
            std::push_heap(own.lower.begin(), own.lower.end(), greater);
        } else if (lower > own.lower.front()) {
            std::pop_heap(own.lower.begin(), own.lower.end(), greater);
            own.lower.back() = lower;
            std::push_heap(own.lower.begin(), own.lower.end(), greater);
        } else {
            return;
        }
        if (static_cast<int64_t>(own.lower.size()) == question.k) raise_to(threshold[q], own.lower.front());
    }

    // The classes of a tile that reach the thresholds of a group's queries, in the same two steps as masses.
    void take_hits(int thread, const CodeGroup& group, int64_t tile, const float* est, const float* radii, const float* constants) {
        alignas(64) float upper[kMostLanes * kTile];
        uint64_t hits[kMostLanes];
        for (int i = 0; i < group.n; ++i)
            hits[i] = codes.scan->reach(est + i * kTile, codes.shares(tile), radii[i], threshold[group.first + i].load(std::memory_order_relaxed) - constants[i],
                                        upper + i * kTile);
        for (int i = 0; i < group.n; ++i) {
            const int64_t q = group.first + i;
            if (hits[i] == 0 || !all.queries[q].usable) continue;
            Found& own = own_found(thread, q);
            for (uint64_t left = hits[i] & allowed_in(question, q, codes.rows->vocab, tile); left != 0; left &= left - 1) {
                const int c = __builtin_ctzll(left);
                const float at = est[i * kTile + c], end = upper[i * kTile + c] + constants[i];
                own.hits.push_back({static_cast<int32_t>(tile * kTile + c), at, end});
                raise(own, q, at - (question.delta > 0 ? kNarrow : 1.f) * (end - at));
            }
            if (own.hits.size() % 1024 < 32 && own.hits.size() > 1024) {  // the threshold has risen since the first ones came
                const float now = threshold[q].load(std::memory_order_relaxed);
                own.hits.erase(std::remove_if(own.hits.begin(), own.hits.end(), [&](const Hit& hit) { return hit.upper < now; }), own.hits.end());
            }
        }
    }

    // The classes of a tile whose keys reach the largest lower end of one so far.
    void take_keys(int thread, const CodeGroup& group, int64_t tile, const float* est, const float* radii, const float* constants) {
        for (int i = 0; i < group.n; ++i) {
            const int64_t q = group.first + i;
            if (!estimates.empty()) std::copy_n(est + i * kTile, kTile, &estimates[(q * codes.count + tile) * kTile]);
            if (all.queries[q].usable) take_keys(own_found(thread, q).keys, q, tile, est + i * kTile, radii[i], constants[i], allowed_in(question, q, codes.rows->vocab, tile), ~uint64_t{0}, 0, keys);
        }
    }
    // Of some classes and draws; the least that a largest key has goes by those that are `sure`.
    void take_keys(std::vector<KeyHit>& hits, int64_t q, int64_t tile, const float* est, float radius, float constant, uint64_t which, uint64_t sure, int first, int last) {
        if (which == 0) return;
        const Executor& e = *codes.rows;
        alignas(64) float own[kTile], rad[kTile], upper[kTile];
        uint32_t words[kTile + kBlock];
        const auto add = static_cast<float>(all.queries[q].add);
        const float fixed = constant + std::fabs(add) * 0x1p-22f, *shares = codes.shares(tile);  // their sum is rounded once more
        for (int64_t c = 0; c < kTile; ++c) own[c] = est[c] + add;
        for (int64_t c = 0; c < kTile; ++c) rad[c] = shares[c] * radius + fixed + std::fabs(own[c]) * 0x1p-23f;
        for (int64_t c = 0; c < kTile && which != ~uint64_t{0}; ++c)
            if ((which >> c & 1) == 0) own[c] = kNone, rad[c] = 0;
        const SampleRule& rule = question.rules[q];
        const int64_t lead = rule.class0 & 3;  // noise() starts at a multiple of four
        for (int d = first; d < last; ++d) {
            std::atomic<float>& least = key[q * keys + d];
            e.kernels->noise(rule.seed, rule.row0, static_cast<uint32_t>(d), tile * kTile + rule.class0 - lead, kTile + (lead != 0 ? kBlock : 0), words);
            float now = least.load(std::memory_order_relaxed);
            if (e.kernels->gumbel_keys(own, rad, words + lead, kTile, e.link, static_cast<float>(1 / rule.temperature), upper) < now) continue;
            for (int64_t c = 0; c < kTile; ++c) {
                if (!(upper[c] >= now)) continue;
                const int64_t id = tile * kTile + c;
                if (hits.size() % 4096 == 0 && !hits.empty())  // thresholds have risen since the first ones came
                    hits.erase(std::remove_if(hits.begin(), hits.end(), [&](const KeyHit& hit) { return hit.upper < key[q * keys + hit.draw].load(std::memory_order_relaxed); }), hits.end());
                hits.push_back({static_cast<int32_t>(id), static_cast<uint32_t>(d), upper[c]});
                if ((sure >> c & 1) == 0) continue;
                const double at = static_cast<double>(own[c]) - rad[c], low = e.linked(at) / rule.temperature + gumbel(rule.seed, rule.row0, static_cast<uint32_t>(d), rule.name(id));
                raise_to(least, static_cast<float>(low - std::fabs(low) * 0x1p-20 - key_error(rule)));
                now = least.load(std::memory_order_relaxed);
            }
        }
    }
    // What the table that stands for a link may be off, in keys.
    double key_error(const SampleRule& rule) const { return codes.rows->link.form == LinkForm::table ? codes.rows->link_b / rule.temperature : 0; }

    // The masses of a tile for all queries of a group before any is taken: who asks for a sum at once waits for it.
    void take_masses(int thread, const CodeGroup& group, int64_t tile, const float* est, const float* part, const float* bend) {
        alignas(64) float mass[kMostLanes * kTile], shared[kMostLanes * kTile], linked[kTile];
        uint64_t heads[kMostLanes];
        for (int i = 0; i < group.n; ++i) {
            const int64_t q = group.first + i;
            CodeMasses& own = masses[q];
            heads[i] = masses_of_tile(exponent, question, q, tile, exponent.of(est + i * kTile, all.queries[q], linked), {part[i], bend[i]}, own.edge, own.lift,
                                      mass + i * kTile, shared + i * kTile, &own.sums[tile], question.entropy ? &own.spreads[tile] : nullptr);
        }
        for (int i = 0; i < group.n; ++i) {
            const int64_t q = group.first + i;
            if (!all.queries[q].usable) continue;
            const CodeMasses& own = masses[q];
            Found& to = own_found(thread, q);
            if (heads[i] != 0) {
                const float* at = exponent.of(est + i * kTile, all.queries[q], linked);
                for (uint64_t left = heads[i]; left != 0; left &= left - 1) {
                    const int c = __builtin_ctzll(left);
                    to.heads.push_back({static_cast<int32_t>(tile * kTile + c), std::exp(std::min(80.f, (at[c] - own.edge) * exponent.scale))});
                    to.mass += to.heads.back().mass;
                }
                lower_rate(q, to.mass);
            }
            if (own.most > 0) drop_points(own, rate[q].load(std::memory_order_relaxed), own.sums[tile], tile, mass + i * kTile, shared + i * kTile, to);
        }
    }

    // Points are dropped at the rate that a known mass needs, or at a larger one.
    void lower_rate(int64_t q, double mass) {
        const auto now = static_cast<float>(masses[q].rate(masses[q].sure + mass * kBelow) * (1 + 0x1p-20));
        float old = rate[q].load(std::memory_order_relaxed);
        if (now > kMuchLess * old) return;
        while (now < old && !rate[q].compare_exchange_weak(old, now, std::memory_order_relaxed)) {}
    }

    // Points on the gaps of a tile with marks below `rate`, in the order of their marks: the distances of a Poisson process are exponential.
    static void drop_points(const CodeMasses& own, double rate, const CodeMasses::Sum& sum, int64_t tile, const float* mass, const float* shared, Found& found) {
        const double gap = sum.gap(), total = rate * gap;
        if (!(own.most * gap < kMostPoints)) {  // by what every order of tiles has, not by the rate of the moment
            found.flooded = true;
            return;
        }
        uint64_t noise = mix(own.key + static_cast<uint64_t>(tile) * 0x9E3779B97F4A7C15u);
        const auto uniform = [&] { return (static_cast<double>(noise >> 11) + 0.5) * 0x1p-53; };
        if (uniform() < 1 - total) return;  // the first is not below: -log u > 1 - u
        constexpr int kRuns = 8;  // of every eighth class; places are counted, a branch for each would be guessed wrongly
        float runs[kRuns] = {}, ends[kRuns];
        for (int i = 0; i < kTile; i += kRuns)
            for (int r = 0; r < kRuns; ++r) runs[r] += shared[i + r];
        std::partial_sum(runs, runs + kRuns, ends);
        const double per_gap = 1 / gap;
        for (double mark = 0; (mark -= std::log(uniform())) < total; noise = mix(noise + 0x9E3779B97F4A7C15u)) {
            noise = mix(noise ^ 0xD1B54A32D192ED03u);
            const float at = static_cast<float>(uniform()) * sum.shared;
            int run = 0, step = 0;
            for (int r = 0; r + 1 < kRuns; ++r) run += at >= ends[r];
            float end = run > 0 ? ends[run - 1] : 0;
            for (int s = 0; s + 1 < kTile / kRuns; ++s) step += at >= (end += shared[s * kRuns + run]);
            int i = step * kRuns + run;
            while (i >= kRuns && !(shared[i] > 0)) i -= kRuns;  // where roundings led beyond the last of them
            if (shared[i] > 0) found.draws.push_back({static_cast<float>(mark * per_gap), static_cast<int32_t>(tile * kTile + i), mass[i], shared[i] * sum.off.part});
        }
    }

    // The edge of each query's heads: an estimate that about kHeads classes reach, by some of the tiles.
    void learn_edges() {
        const int64_t n = static_cast<int64_t>(all.queries.size()), step = std::max<int64_t>(1, std::min(codes.count / kPilotTiles, kPilotTiles));
        const int64_t tiles = (codes.count + step - 1) / step;
        std::vector<float> seen(n * tiles * kTile);
        std::vector<Stretch> offs(n * tiles);
        scan_tiles(codes, all.groups, step, threads, [&](int, size_t g, int64_t tile, const float* est) {
            const CodeGroup& group = all.groups[g];
            alignas(64) float radii[kMostLanes], part[kMostLanes], bend[kMostLanes];
            codes.scan->radii(codes.tile(tile), codes.layout, wide[g], exponent.slope, radii, part, bend);
            for (int q = 0; q < group.n; ++q) {
                const uint64_t allowed = allowed_in(question, group.first + q, codes.rows->vocab, tile);
                float* to = &seen[((group.first + q) * tiles + tile / step) * kTile];
                alignas(64) float linked[kTile];
                const float* own = exponent.of(est + q * kTile, all.queries[group.first + q], linked);
                for (int i = 0; i < kTile; ++i) to[i] = allowed >> i & 1 ? own[i] : kNone;
                offs[(group.first + q) * tiles + tile / step] = {part[q], bend[q]};
            }
        });
        const auto rank = static_cast<size_t>(std::max<int64_t>(2, (question.entropy ? kHeadsOfEntropy : kHeads) / step));
        run_parallel(n < 2 * threads ? 1 : threads, [&, next = std::make_shared<Turns<int64_t>>()](int) {
            for (int64_t q = (*next)++; q < n; q = (*next)++) learn_edge(q, &seen[q * tiles * kTile], &offs[q * tiles], tiles, step, rank);
        });
    }

    // One query's: from estimates [tiles][64], each in the place of `step` of them, the one of rank `rank`; and how many points a bet is going to take.
    void learn_edge(int64_t q, const float* seen, const Stretch* offs, int64_t tiles, int64_t step, size_t rank) {
        std::vector<float> best;  // the largest, the least in front
        for (const float* one = seen; one < seen + tiles * kTile; ++one) {
            if (best.size() > rank && !(*one > best.front())) continue;
            if (best.size() > rank) std::pop_heap(best.begin(), best.end(), std::greater<float>()), best.pop_back();
            best.push_back(*one);
            std::push_heap(best.begin(), best.end(), std::greater<float>());
        }
        CodeMasses& query = masses[q];
        query.edge = std::max(best.front(), -1e30f);
        if (!(question.delta > 0)) return;
        double mass = 0, gaps = 0, moment = 0, leaning = 0;
        for (int64_t t = 0; t < tiles; ++t) {
            alignas(64) float each[kTile], shared[kTile];
            float sums_of[2], more[3];
            codes.scan->masses(seen + t * kTile, codes.shares(t * step), exponent.scale, query.edge, offs[t].bend, ~uint64_t{0}, each, shared, sums_of);
            mass += sums_of[0], gaps += CodeMasses::Sum{sums_of[0], sums_of[1], offs[t]}.gap();
            if (!question.entropy) continue;
            codes.scan->surprisals(seen + t * kTile, exponent.scale, query.edge, 0, each, shared, more);
            moment += more[0], leaning += offs[t].part * (more[1] + 0.5 * offs[t].most() * sums_of[1]);
        }
        const auto times = static_cast<double>(step);
        double heads = 0, first = 0, second = 0;  // some of those that the scan is going to find, and the largest of them
        for (float one : best) {
            const double y = std::max(-80.f, std::min(80.f, (one - query.edge) * exponent.scale)), own = std::exp(y);
            heads += own, moment += y * own;
            second = std::max(second, std::min(first, own)), first = std::max(first, own);
        }
        query.least = kSure * mass * times + first + second + kSureOfHeads * (heads - first - second) * times;
        if (question.entropy) query.lift = std::fabs(moment / (mass + heads)) + 1, query.guessed = (mass + heads) * times, query.sure = kSure * mass * times;
        if (!(gaps > 0) || !std::isfinite(gaps)) return;
        query.expect(mass * times, gaps * times, (question.entropy ? query.lift * gaps + leaning : gaps) * times, question.eps, question.delta / 4, codes.rows->vocab,
                     question.entropy ? kMostOfEntropy : kMostPoints);
        query.once *= kMorePoints, query.squared *= question.entropy ? kOfSquares : kMorePoints;
        rate[q].store(static_cast<float>(query.most));
        lower_rate(q, heads);
        query.key = key_of(all.queries[q].hidden, codes.rows->dim, question.seed);
    }

    void run() {
        if (sums) learn_edges();
        scan_tiles(codes, all.groups, 1, threads, [&](int thread, size_t g, int64_t tile, const float* est) {
            const CodeGroup& group = all.groups[g];
            alignas(64) float radii[kMostLanes], part[kMostLanes], bend[kMostLanes];
            if (sums) codes.scan->radii(codes.tile(tile), codes.layout, wide[g], exponent.slope, radii, part, bend);
            if (ids || keys > 0) codes.scan->radii(codes.tile(tile), codes.layout, near[g], 0, radii, nullptr, nullptr);
            if (ids) take_hits(thread, group, tile, est, radii, near[g].constant);
            if (keys > 0) take_keys(thread, group, tile, est, radii, near[g].constant);
            if (sums) take_masses(thread, group, tile, est, part, bend);
        });
    }
};

// The largest key of one draw, from the classes that may have it, largest upper ends first: of those before a class, where one is given.
// False where it may be another's.
bool largest_key(const Scan& scan, int64_t q, int draw, std::vector<KeyHit> hits, const Scored* behind, int threads, std::unordered_map<int64_t, double>& known, Answer& answer) {
    const Executor& e = *scan.codes.rows;
    const SampleRule& rule = scan.question.rules[q];
    const double* hidden = scan.all.queries[q].hidden;
    const TrueOrder order(*e.kernels, e, hidden);
    std::sort(hits.begin(), hits.end(), [](const KeyHit& a, const KeyHit& b) { return a.upper > b.upper || (a.upper == b.upper && a.id < b.id); });
    Draw best;
    for (auto next = hits.begin(); next != hits.end() && !(next->upper < best.score);) {
        constexpr int64_t kSome = 8;
        const auto end = next + std::min<int64_t>(kSome, hits.end() - next);
        std::vector<Scored> rows;
        for (auto hit = next; hit != end; ++hit)
            if (known.count(hit->id) == 0) rows.push_back({hit->id, 0});
        score(e, hidden, rows, threads);
        answer.rows += static_cast<int64_t>(rows.size());
        for (const Scored& row : rows) known[row.id] = row.z;
        for (; next != end; ++next) {
            const Scored one{next->id, known[next->id]};
            if (!(one.z > -kInf) || (behind != nullptr && !order(one, *behind))) continue;
            const double score_of = e.linked(one.z) / rule.temperature + gumbel(rule.seed, rule.row0, static_cast<uint32_t>(draw), rule.name(one.id));
            if (best.id < 0 || score_of > best.score || (score_of == best.score && one.id < best.id)) best = {one.id, one.z, score_of, !(scan.question.delta > 0)};
        }
    }
    // A class that raised the threshold may be below its lower end; who stayed below the threshold is below what was scored, or is not ruled out.
    if (best.id < 0 || !(best.score >= scan.key[q * scan.keys + draw].load()) || !(std::fabs(best.score) < kMostShift)) return false;
    answer.draws[draw] = best;
    return true;
}

// The largest key of each draw. False where too many may have one, or beyond float32.
bool draws_of_codes(const Scan& scan, int64_t q, const std::vector<KeyHit>& hits, int threads, Answer& answer) {
    std::vector<std::vector<KeyHit>> of(scan.keys);
    int64_t many = 0;
    for (const KeyHit& hit : hits)
        if (!(hit.upper < scan.key[q * scan.keys + hit.draw].load())) of[hit.draw].push_back(hit), ++many;
    if (many > scan.keys * most_scored(scan.codes)) return false;
    std::unordered_map<int64_t, double> known;  // rows that an earlier draw scored
    answer.draws.resize(scan.keys);
    for (int draw = 0; draw < scan.keys; ++draw)
        if (!largest_key(scan, q, draw, std::move(of[draw]), nullptr, threads, known, answer)) return answer.draws.clear(), false;
    return true;
}

// Another draw, of the classes that come before one that is not in the nucleus, from the estimates that are kept.
bool draw_before(Scan& scan, int64_t q, const ScanRadii& wide, int draw, const Scored& behind, int threads, Answer& answer) {
    const Codes& codes = scan.codes;
    const Executor& e = *codes.rows;
    const CodeQuery& query = scan.all.queries[q];
    const double off = TrueOrder(*e.kernels, e, query.hidden).around(behind.z);
    const float reach = floor_of(behind.z - off, query.add) - wide.constant[0], above = -floor_of(-behind.z - off, -query.add) + wide.constant[0];
    std::vector<KeyHit> hits;
    std::atomic<float>& least = scan.key[q * scan.keys + draw];
    least.store(std::numeric_limits<float>::lowest());
    for (int64_t tile = 0; tile < codes.count; ++tile) {
        alignas(64) float ends[kTile], radii[kMostLanes];
        const float *est = &scan.estimates[(q * codes.count + tile) * kTile], *shares = codes.shares(tile);
        codes.scan->radii(codes.tile(tile), codes.layout, wide, 0, radii, nullptr, nullptr);
        const uint64_t which = allowed_in(scan.question, q, e.vocab, tile) & codes.scan->reach(est, shares, radii[0], reach, ends);
        if (which == 0) continue;
        scan.take_keys(hits, q, tile, est, radii[0], wide.constant[0], which, codes.scan->reach(est, shares, -radii[0], above, ends), draw, draw + 1);
    }
    const float now = least.load();
    hits.erase(std::remove_if(hits.begin(), hits.end(), [&](const KeyHit& hit) { return hit.upper < now; }), hits.end());
    std::unordered_map<int64_t, double> known;
    return static_cast<int64_t>(hits.size()) <= most_scored(codes) && largest_key(scan, q, draw, std::move(hits), &behind, threads, known, answer);
}

// Draws of all classes that are not in their nucleus are drawn again, of those that come before them: `inside` says that all are in it then.
// Where the best hold the nucleus, `least` and `most` of them are in it, as closely as the draws among these and their error ask for.
void draw_into_nucleus(Scan& scan, int64_t q, double delta, int threads, Answer& answer) {
    const Codes& codes = scan.codes;
    const Executor& e = *codes.rows;
    const std::vector<Scored>& best = answer.best;
    if (best.empty() || static_cast<int64_t>(best.size()) < scan.question.k || !std::isfinite(best.back().z)) return;
    const SampleRule& rule = scan.question.rules[q];
    const double top_p = rule.top_p, beta = scan.question.beta, top = e.linked(best[0].z) * beta;
    const TrueOrder order(*e.kernels, e, scan.all.queries[q].hidden);
    Scored in{-1, kInf}, out{-1, -kInf};  // the last class that is known to be in the nucleus, the first that is known not to be
    const auto as_in = [&](const Scored& x) { return x.id == in.id || order(x, in); };
    const auto as_out = [&](const Scored& x) { return x.id == out.id || order(out, x); };
    std::vector<double> mass;
    double known = 0;
    for (const Scored& one : best) mass.push_back(std::exp(e.linked(one.z) * beta - top)), known += mass.back();
    // What the best and the normaliser say by themselves; whether they hold the whole of it.
    const auto hold = [&] {
        const bool near = std::isfinite(answer.error);
        const double low = std::max(known, near ? std::exp(answer.lse - answer.error - top) : 0), high = near ? std::exp(answer.lse + answer.error - top) : kInf;
        double before = 0;
        for (size_t i = 0; i < best.size(); before += mass[i++]) {
            if (before < top_p * low * kSurely && !as_in(best[i])) in = best[i];
            if (before > top_p * high / kSurely && !as_out(best[i])) out = best[i];
        }
        return known * kSurely > top_p * high;
    };
    ScanRadii wide = radii_of(codes, &scan.all.queries[q], 1, kappa_of(2.0 * static_cast<double>(e.vocab), delta));
    wide.constant[0] += static_cast<float>(scan.exponent.lost(scan.all.queries[q]));
    int asked = 0;
    const auto decide = [&](const Scored& x) {  // false where it stays open
        const int side = side_of(codes, scan.all, q, scan.question, wide, &scan.estimates[q * codes.count * kTile], std::ldexp(delta, -1 - ++asked), x, threads, answer);
        if (side != 0) (side < 0 ? in : out) = x;
        return side != 0;
    };
    bool held = hold();
    for (int draw = 0; draw < scan.keys && !held; ++draw) {
        for (int round = 0; !held; ++round) {
            const Scored x{answer.draws[draw].id, answer.draws[draw].z};
            if (as_in(x)) break;
            if (!as_out(x)) {
                const bool decided = decide(x);
                held = hold();
                if (!decided && !held) return;
                continue;
            }
            if (round >= kMostRedrawn || !draw_before(scan, q, wide, draw, out, threads, answer)) return;
        }
    }
    answer.inside = !held;
    while (held) {
        answer.least = static_cast<size_t>(std::count_if(best.begin(), best.end(), as_in));
        answer.most = std::max(answer.least, best.size() - static_cast<size_t>(std::count_if(best.begin(), best.end(), as_out)));  // a bet may be lost
        size_t next = answer.most;
        for (int draw = 0; draw < scan.keys && next == answer.most; ++draw) {
            size_t place = 0;
            pick(e, best.data(), answer.most, rule, static_cast<uint32_t>(draw), &place);
            if (place >= answer.least) next = place;
        }
        const double between = std::accumulate(mass.begin() + static_cast<int64_t>(answer.least), mass.begin() + static_cast<int64_t>(answer.most), 0.0);
        if (next == answer.most && between > scan.question.eps * top_p * known) next = (answer.least + answer.most) / 2;
        if (next == answer.most || !decide(best[next])) return;
    }
}

// The queries that are left, by a full scan.
void scan_fully(const Codes& codes, const double* hidden, const std::vector<int64_t>& left, const Question& question, std::vector<Answer>& answers) {
    if (left.empty()) return;
    SomeRows some(hidden, left, question, codes.rows->dim, codes.rows->vocab);
    some.question.rules = nullptr;
    if (question.rules != nullptr && question.k == 0 && std::isinf(question.eps)) return;  // who asked reads the rows for these
    SomeRows::put_back(ask(*codes.rows, some.hidden.data(), static_cast<int64_t>(left.size()), some.question), left, answers);
}

}  // namespace

std::vector<Answer> ask(const Codes& codes, const double* hidden, int64_t n, const Question& question) {
    const Executor& e = *codes.rows;
    const bool sums = std::isfinite(question.eps), ids = question.k > 0;
    const int keys = question.rules != nullptr && n > 0 ? question.rules[0].n : 0;
    std::vector<Answer> answers(n);
    if (n == 0) return answers;
    const bool by_mass = keys > 0 && question.rules[0].goes_by_mass();
    const int64_t tile = (by_mass ? kTile * sizeof(float) : 0) + (sums ? sizeof(CodeMasses::Sum) + (question.entropy ? sizeof(CodeMasses::Spread) : 0) : 0);
    const int64_t at_once = std::max<int64_t>(kMostLanes, (by_mass ? kHeldBytes / 2 : kHeldBytes) / (codes.count * tile + 8 * codes.width) / kMostLanes * kMostLanes);
    if (n > at_once) {
        for (int64_t start = 0; start < n; start += at_once) {
            Question part = question;
            if (question.mask != nullptr && question.mask_per_row) part.mask += start * e.vocab;
            if (question.rules != nullptr) part.rules += start;
            std::vector<Answer> found = ask(codes, hidden + start * e.dim, std::min(at_once, n - start), part);
            std::move(found.begin(), found.end(), answers.begin() + start);
        }
        return answers;
    }
    std::vector<int64_t> left;
    if (4 * question.k > e.vocab) {
        left.resize(n);
        std::iota(left.begin(), left.end(), 0);
        scan_fully(codes, hidden, left, question, answers);
        return answers;
    }
    const PreparedCodes all = prepare_codes(codes, hidden, n, question.seed, question.threads);
    // A half of what may fail is for the ids, a quarter for the intervals of all classes, a quarter for bets: of draws by mass on their nuclei,
    // an eighth at the most.
    const double delta = question.delta, kappa = kappa_of(static_cast<double>(question.k + keys), sums || by_mass ? delta / 2 : delta);
    Scan scan{codes, question, all, question.threads, ids, sums, keys, Exponent(codes, question.beta), {}, {}, {}, {}, std::vector<std::atomic<float>>(n), std::vector<std::atomic<float>>(n),
              std::vector<std::atomic<float>>(n * keys)};
    for (std::atomic<float>& least : scan.key) least.store(std::numeric_limits<float>::lowest());
    scan.found.resize(n * question.threads);
    if (by_mass) scan.estimates.resize(static_cast<size_t>(n * codes.count * kTile));
    for (const CodeGroup& group : all.groups) {
        if (ids || keys > 0) scan.near.push_back(radii_of(codes, &all.queries[group.first], group.n, kappa));
        if (!sums) continue;
        scan.wide.push_back(radii_of(codes, &all.queries[group.first], group.n, kappa_of(2.0 * static_cast<double>(e.vocab), delta / 4)));
        for (int q = 0; q < group.n; ++q) scan.wide.back().constant[q] += static_cast<float>(scan.exponent.lost(all.queries[group.first + q]));
    }
    if (sums) scan.masses.resize(n);
    for (int64_t q = 0; q < n; ++q) {
        scan.threshold[q].store(std::numeric_limits<float>::lowest());
        if (sums) scan.masses[q].sums.resize(codes.count);
        if (question.entropy) scan.masses[q].spreads.resize(codes.count);
    }
    scan.run();
    std::vector<uint8_t> open(n);
    const int inside = n < 2 * question.threads ? question.threads : 1;  // threads of one query
    const auto resolve = [&](int64_t q) {
        Answer& answer = answers[q];
        answer.bytes = codes.bytes() / static_cast<double>(n);  // of what all queries read, its share
        bool done = all.queries[q].usable;
        if (done && ids) {
            std::vector<Hit> hits;
            for (int t = 0; t < question.threads; ++t) {
                const std::vector<Hit>& own = scan.own_found(t, q).hits;
                hits.insert(hits.end(), own.begin(), own.end());
            }
            done = best_of_codes(codes, all, q, question, kappa, std::move(hits), scan.threshold[q].load(), inside, answer);
        }
        if (done && keys > 0) {
            std::vector<KeyHit> hits;
            for (int t = 0; t < question.threads; ++t) {
                const std::vector<KeyHit>& own = scan.own_found(t, q).keys;
                hits.insert(hits.end(), own.begin(), own.end());
            }
            done = draws_of_codes(scan, q, hits, inside, answer);
        }
        if (done && sums) {
            CodeMasses& masses = scan.masses[q];
            bool flooded = false;
            for (int t = 0; t < question.threads; ++t) {
                const std::vector<CodeHead>& own = scan.own_found(t, q).heads;
                masses.heads.insert(masses.heads.end(), own.begin(), own.end());
                const std::vector<CodeDraw>& points = scan.own_found(t, q).draws;
                masses.draws.insert(masses.draws.end(), points.begin(), points.end());
                flooded |= scan.own_found(t, q).flooded;
            }
            if (flooded) masses.draws.clear();
            std::sort(masses.heads.begin(), masses.heads.end(), [](const CodeHead& a, const CodeHead& b) { return a.id < b.id; });
            done = (question.entropy ? entropy_of_codes : normaliser_of_codes)(codes, all, q, question, masses, by_mass ? delta / 8 : delta / 4, inside, answer);
        }
        if (!sums) {  // that of the classes in the answer: a lower bound
            answer.lse = -kInf;
            double sum = 0;
            for (const Scored& one : answer.best) sum += std::exp((e.linked(one.z) - e.linked(answer.best.front().z)) * question.beta);
            if (sum > 0) answer.lse = e.linked(answer.best.front().z) * question.beta + std::log(sum);
            answer.error = kInf;
        }
        if (done && by_mass) draw_into_nucleus(scan, q, delta / 4, inside, answer);
        answer.proved = done && !(delta > 0);
        answer.bytes += static_cast<double>(answer.rows) * e.row_bytes();
        open[q] = !done;
    };
    each_resolved(n, question.threads, inside > 1, resolve);
    for (int64_t q = 0; q < n; ++q)
        if (open[q]) left.push_back(q);
    scan_fully(codes, hidden, left, question, answers);
    return answers;
}

}  // namespace headlong
