// What is asked of codes: one scan for all queries, then the ids and normalisers of each; a full scan for those that it leaves too open.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>

#include "codes/pass.h"
#include "executor/largest.h"
#include "executor/verbs.h"
#include "normaliser/draw_points.h"

namespace headlong {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr float kNarrow = 0.5f;        // of radii that may fail: how far below its estimate a class is expected to be at worst
constexpr int64_t kHeads = 128;        // classes of a query that are scored exactly for its normaliser, about
constexpr double kMostPoints = 2048;   // that fall during a scan: who needs more draws them later
constexpr int64_t kPilotTiles = 16;    // at the least, and one of so many at the most: where the edge of the heads is learned

// What one thread knows of the ids of one query: hits, and the k largest lower ends, the least in front.
struct Found {
    std::vector<CodeHit> hits;
    std::vector<float> lower;
    std::vector<int32_t> heads;
    std::vector<CodeDraw> draws;
    bool flooded = false;  // a tile whose gaps are far beyond what some of the tiles showed: its points were not drawn
};

// All that is asked of a batch and learned during its scan.
struct Scan {
    const Codes& codes;
    const Question& question;
    const PreparedCodes& all;
    int threads;
    bool ids, sums;
    float beta = 1;
    std::vector<ScanRadius> radii{};
    std::vector<CodeMasses> masses{};
    std::vector<Found> found{};  // [query][thread]
    std::vector<std::atomic<float>> threshold;

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

    void take_hits(int thread, int64_t q, int64_t tile, const float* est) {
        alignas(64) float upper[kTile];
        const float least = threshold[q].load(std::memory_order_relaxed);
        uint64_t hits = codes.scan->reach(est, codes.tiles + tile * codes.layout.bytes, codes.layout, radii[q], least, upper);
        if (hits == 0) return;
        hits &= allowed_in(question, q, codes.rows->vocab, tile);
        Found& own = found[q * threads + thread];
        for (; hits != 0; hits &= hits - 1) {
            const int i = __builtin_ctzll(hits);
            own.hits.push_back({static_cast<int32_t>(tile * kTile + i), est[i], upper[i]});
            raise(own, q, est[i] - (radii[q].squared ? kNarrow : 1.f) * (upper[i] - est[i]));
        }
        if (own.hits.size() % 1024 < 32 && own.hits.size() > 1024) {  // the threshold has risen since the first ones came
            const float now = threshold[q].load(std::memory_order_relaxed);
            own.hits.erase(std::remove_if(own.hits.begin(), own.hits.end(), [&](const CodeHit& hit) { return hit.upper < now; }), own.hits.end());
        }
    }

    void take_masses(int thread, int64_t q, int64_t tile, const float* est) {
        alignas(64) float mass[kTile], gap[kTile];
        CodeMasses& own = masses[q];
        uint64_t heads = codes.scan->masses(est, codes.tiles + tile * codes.layout.bytes, codes.layout, own.radius, beta, own.edge,
                                            allowed_in(question, q, codes.rows->vocab, tile), mass, gap, &own.sums[2 * tile]);
        if (own.rate > 0) drop_points(own, tile, mass, gap, found[q * threads + thread]);
        for (; heads != 0; heads &= heads - 1) found[q * threads + thread].heads.push_back(static_cast<int32_t>(tile * kTile + __builtin_ctzll(heads)));
    }

    // Points on the gaps of a tile, at distances that are exponential: a Poisson process, so that given their number they are independent.
    static void drop_points(const CodeMasses& own, int64_t tile, const float* mass, const float* gap, Found& found) {
        const double total = own.rate * own.sums[2 * tile + 1];
        if (!(total < kMostPoints)) {
            found.flooded = true;
            return;
        }
        uint64_t noise = mix(own.key + static_cast<uint64_t>(tile) * 0x9E3779B97F4A7C15u);
        if ((static_cast<double>(noise >> 11) + 0.5) * 0x1p-53 < 1 - total) return;  // the first is behind the tile: -log u > 1 - u
        double at = 0, sum = 0;
        int i = 0;
        while ((at -= std::log((static_cast<double>(noise >> 11) + 0.5) * 0x1p-53)) < total) {
            while (i < kTile - 1 && !(at < sum + own.rate * gap[i])) sum += own.rate * gap[i++];
            noise = mix(noise + 0x9E3779B97F4A7C15u);
            if (gap[i] > 0) found.draws.push_back({noise, static_cast<int32_t>(tile * kTile + i), mass[i], gap[i]});
            noise = mix(noise ^ 0xD1B54A32D192ED03u);
        }
    }

    // The edge of each query's heads: an estimate that about kHeads classes reach, by some of the tiles.
    void learn_edges() {
        const int64_t n = static_cast<int64_t>(all.queries.size()), step = std::max<int64_t>(1, std::min(codes.count / kPilotTiles, kPilotTiles));
        const int64_t tiles = (codes.count + step - 1) / step;
        std::vector<float> seen(n * tiles * kTile);
        scan_tiles(codes, all.groups, step, threads, [&](int, const CodeGroup& group, int64_t tile, const float* est) {
            for (int q = 0; q < group.n; ++q) {
                const uint64_t allowed = allowed_in(question, group.first + q, codes.rows->vocab, tile);
                float* to = &seen[((group.first + q) * tiles + tile / step) * kTile];
                for (int i = 0; i < kTile; ++i) to[i] = allowed >> i & 1 ? est[q * kTile + i] : kNone;
            }
        });
        const std::vector<float> unsorted = question.delta > 0 ? seen : std::vector<float>();
        const int64_t rank = std::max<int64_t>(2, kHeads / step);
        for (int64_t q = 0; q < n; ++q) {
            float* own = &seen[q * tiles * kTile];
            std::nth_element(own, own + std::min(rank, tiles * kTile - 1), own + tiles * kTile, std::greater<float>());
            CodeMasses& query = masses[q];
            query.edge = std::max(own[std::min(rank, tiles * kTile - 1)], -1e30f);
            if (!(question.delta > 0)) continue;
            // From the same tiles, how many points a bet is going to take.
            double known = 0, mass = 0, gaps = 0;
            for (int64_t t = 0; t < tiles; ++t) {
                alignas(64) float masses_of[kTile], gaps_of[kTile];
                float sums_of[2];
                codes.scan->masses(&unsorted[(q * tiles + t) * kTile], codes.tiles + t * step * codes.layout.bytes, codes.layout, query.radius, beta, query.edge,
                                   ~uint64_t{0}, masses_of, gaps_of, sums_of);
                mass += sums_of[0], gaps += sums_of[1];
            }
            for (int64_t i = 0; i < rank; ++i) known += std::exp(std::min(80.0, static_cast<double>(own[i] - query.edge) * beta));
            if (!(gaps > 0) || !std::isfinite(gaps)) continue;
            const double times = static_cast<double>(step), points = points_for((known + mass) * times, mass * times, gaps * times, question.eps, question.delta / 4, codes.rows->vocab);
            query.rate = std::min(2.5 * points + 64, kMostPoints) / (gaps * times);
            query.key = key_of(all.queries[q].hidden, codes.rows->dim, question.seed);
        }
    }

    void run() {
        if (sums) learn_edges();
        scan_tiles(codes, all.groups, 1, threads, [&](int thread, const CodeGroup& group, int64_t tile, const float* est) {
            for (int q = 0; q < group.n; ++q) {
                if (!all.queries[group.first + q].usable) continue;
                if (ids) take_hits(thread, group.first + q, tile, est + q * kTile);
                if (sums) take_masses(thread, group.first + q, tile, est + q * kTile);
            }
        });
    }
};

// The queries that are left, by a full scan.
void scan_fully(const Codes& codes, const double* hidden, const std::vector<int64_t>& left, const Question& question, std::vector<Answer>& answers) {
    if (left.empty()) return;
    const int64_t dim = codes.rows->dim, vocab = codes.rows->vocab;
    std::vector<double> some(left.size() * dim);
    std::vector<uint8_t> mask;
    Question asked = question;
    for (size_t i = 0; i < left.size(); ++i) {
        std::copy_n(hidden + left[i] * dim, dim, &some[i * dim]);
        if (question.mask != nullptr && question.mask_per_row) mask.insert(mask.end(), question.mask + left[i] * vocab, question.mask + (left[i] + 1) * vocab);
    }
    if (!mask.empty()) asked.mask = mask.data();
    std::vector<Answer> found(left.size());
    std::vector<int64_t> each(left.size());
    std::iota(each.begin(), each.end(), 0);
    finish(*codes.rows, some.data(), each, asked, found);  // in float64, row by row in one order: the same in any batch
    for (size_t i = 0; i < left.size(); ++i) {
        found[i].rows += answers[left[i]].rows;
        found[i].bytes += answers[left[i]].bytes;
        found[i].dense = true;
        answers[left[i]] = std::move(found[i]);
    }
}

}  // namespace

std::vector<Answer> ask(const Codes& codes, const double* hidden, int64_t n, const Question& question) {
    const Executor& e = *codes.rows;
    const bool sums = std::isfinite(question.eps), ids = question.k > 0;
    std::vector<Answer> answers(n);
    std::vector<int64_t> left;
    if (4 * question.k > e.vocab || (sums && e.link.form != LinkForm::affine)) {
        left.resize(n);
        std::iota(left.begin(), left.end(), 0);
        scan_fully(codes, hidden, left, question, answers);
        return answers;
    }
    const PreparedCodes all = prepare_codes(codes, hidden, n, question.seed, question.threads);
    // A half of what may fail is for the ids, the rest for the intervals of all classes and for the bet.
    const double delta = question.delta, kappa = kappa_of(static_cast<double>(question.k), sums ? delta / 2 : delta);
    Scan scan{codes, question, all, question.threads, ids, sums, static_cast<float>(e.link_a * question.beta), {}, {}, {}, std::vector<std::atomic<float>>(n)};
    scan.found.resize(n * question.threads);
    scan.radii.resize(n);
    if (sums) scan.masses.resize(n);
    for (int64_t q = 0; q < n; ++q) {
        scan.threshold[q].store(std::numeric_limits<float>::lowest());
        if (ids) scan.radii[q] = radius_of(codes, all.queries[q], kappa);
        if (!sums) continue;
        scan.masses[q].radius = radius_of(codes, all.queries[q], kappa_of(2.0 * static_cast<double>(e.vocab), delta / 4));
        scan.masses[q].sums.resize(2 * codes.count);
    }
    scan.run();
    std::vector<uint8_t> open(n);
    const int inside = n < 2 * question.threads ? question.threads : 1;  // threads of one query
    const auto resolve = [&](int64_t q) {
        Answer& answer = answers[q];
        answer.bytes = codes.bytes() / static_cast<double>(n);  // of what all queries read, its share
        bool done = all.queries[q].usable;
        if (done && ids) {
            std::vector<CodeHit> hits;
            for (int t = 0; t < question.threads; ++t) {
                const std::vector<CodeHit>& own = scan.found[q * question.threads + t].hits;
                hits.insert(hits.end(), own.begin(), own.end());
            }
            done = best_of_codes(codes, all, q, question, kappa, std::move(hits), scan.threshold[q].load(), inside, answer);
        }
        if (done && sums) {
            CodeMasses& masses = scan.masses[q];
            bool flooded = false;
            for (int t = 0; t < question.threads; ++t) {
                const std::vector<int32_t>& own = scan.found[q * question.threads + t].heads;
                masses.heads.insert(masses.heads.end(), own.begin(), own.end());
                const std::vector<CodeDraw>& points = scan.found[q * question.threads + t].draws;
                masses.draws.insert(masses.draws.end(), points.begin(), points.end());
                flooded |= scan.found[q * question.threads + t].flooded;
            }
            if (flooded) masses.draws.clear();
            std::sort(masses.heads.begin(), masses.heads.end());
            done = normaliser_of_codes(codes, all, q, question, masses, delta / 4, inside, answer);
        }
        if (!sums) {  // that of the classes in the answer: a lower bound
            answer.lse = -kInf;
            double sum = 0;
            for (const Scored& one : answer.best) sum += std::exp((e.linked(one.z) - e.linked(answer.best.front().z)) * question.beta);
            if (sum > 0) answer.lse = e.linked(answer.best.front().z) * question.beta + std::log(sum);
            answer.error = kInf;
        }
        answer.proved = done && !(delta > 0);
        answer.bytes += static_cast<double>(answer.rows) * e.row_bytes();
        open[q] = !done;
    };
    if (inside > 1) {
        for (int64_t q = 0; q < n; ++q) resolve(q);
    } else {
        Turns<int64_t> next;
        run_parallel(question.threads, [&](int) {
            for (int64_t q = next++; q < n; q = next++) resolve(q);
        });
    }
    for (int64_t q = 0; q < n; ++q)
        if (open[q]) left.push_back(q);
    scan_fully(codes, hidden, left, question, answers);
    return answers;
}

}  // namespace headlong
