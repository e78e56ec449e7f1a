// What a normaliser takes from a scan: the proposal of a bet for every query, and points that fall on its gaps.
#pragma once

#include <memory>
#include <numeric>

#include "codes/collect_hits.h"
#include "codes/draw_points.h"

namespace headlong {

// Drops points on the gaps of tiles, at the rate that the mass which is known by then asks for, or at a larger one.
class PointSampler {
  public:
    explicit PointSampler(int64_t n) : rate_(n) {}

    void begin(int64_t q, const Proposal& own, double mass) {
        rate_[q].store(static_cast<float>(own.rate.most));
        lower(q, own, mass);
    }
    void lower(int64_t q, const Proposal& own, double mass) {
        constexpr double below = 1 - 0x1p-10;  // roundings of sums in another order
        const auto now = static_cast<float>(own.rate.at(own.sure + mass * below) * (1 + 0x1p-20));
        float old = rate_[q].load(std::memory_order_relaxed);
        if (now > kMuchLess * old) return;
        while (now < old && !rate_[q].compare_exchange_weak(old, now, std::memory_order_relaxed)) {}
    }
    // On those of a tile with marks below the rate, in the order of their marks: the distances of a Poisson process are exponential. False
    // where there would be too many, by what every order of tiles has and not by the rate of the moment: a tile whose gaps are far beyond
    // what some of the tiles showed.
    bool drop(int64_t q, const Proposal& own, int64_t tile, const TileMasses& at, std::vector<Proposal::Point>& points) const {
        const double gap = at.sum.gap(), total = rate_[q].load(std::memory_order_relaxed) * gap;
        if (!(own.rate.most * gap < kForNormaliser.most_points)) return false;
        uint64_t noise = mix(own.key + static_cast<uint64_t>(tile) * 0x9E3779B97F4A7C15u);
        const auto uniform = [&] { return (static_cast<double>(noise >> 11) + 0.5) * 0x1p-53; };
        if (uniform() < 1 - total) return true;  // the first is not below: -log u > 1 - u
        constexpr int kRuns = 8;  // of every eighth class; places are counted, a branch for each would be guessed wrongly
        float runs[kRuns] = {}, ends[kRuns];
        for (int i = 0; i < kTile; i += kRuns)
            for (int r = 0; r < kRuns; ++r) runs[r] += at.shared[i + r];
        std::partial_sum(runs, runs + kRuns, ends);
        const double per_gap = 1 / gap;
        for (double mark = 0; (mark -= std::log(uniform())) < total; noise = mix(noise + 0x9E3779B97F4A7C15u)) {
            noise = mix(noise ^ 0xD1B54A32D192ED03u);
            const float place = static_cast<float>(uniform()) * at.sum.shared;
            int run = 0, step = 0;
            for (int r = 0; r + 1 < kRuns; ++r) run += place >= ends[r];
            float end = run > 0 ? ends[run - 1] : 0;
            for (int s = 0; s + 1 < kTile / kRuns; ++s) step += place >= (end += at.shared[s * kRuns + run]);
            int i = step * kRuns + run;
            while (i >= kRuns && !(at.shared[i] > 0)) i -= kRuns;  // where roundings led beyond the last of them
            if (at.shared[i] > 0) points.push_back({static_cast<float>(mark * per_gap), static_cast<int32_t>(tile * kTile + i), at.mass[i], at.shared[i] * at.sum.off.part});
        }
        return true;
    }

  private:
    std::vector<std::atomic<float>> rate_;  // of each query, as far as the scan is
};

class MassCollector {
  public:
    MassCollector(const Codes& codes, const Question& question, const PreparedCodes& all)
        : codes_(codes), question_(question), all_(all), exponent_(codes, question.beta), weighted_(question.functional != nullptr),
          effort_(weighted_ ? kForFunctional : kForNormaliser), proposals_(all.queries.size()), sampler_(all.queries.size()), found_(question.threads, all.queries.size()) {
        const double kappa = kappa_of(2.0 * static_cast<double>(codes.rows->vocab), question.delta / 4);
        for (const CodeGroup& group : all.groups) {
            wide_.push_back(radii_of(codes, &all.queries[group.first], group.n, kappa));
            for (int q = 0; q < group.n; ++q) wide_.back().constant[q] += static_cast<float>(exponent_.lost(all.queries[group.first + q]));
        }
        for (Proposal& own : proposals_) {
            own.sums.resize(codes.count);
            if (weighted_) own.rate.lift = 1, own.spreads.resize(codes.count);
        }
        learn_edges();
    }
    // Bytes of a query that are held for each tile.
    static int64_t bytes(const Question& question) { return sizeof(Proposal::Sum) + (question.functional != nullptr ? sizeof(Proposal::Spread) : 0); }

    // Masses for all queries of a group before any is taken: who asks for a sum at once waits for it.
    void take(int thread, size_t g, int64_t tile, const float* est) {
        const CodeGroup& group = all_.groups[g];
        alignas(64) float part[kMostLanes], bend[kMostLanes], linked[kTile];
        radii(g, tile, part, bend);
        TileMasses masses[kLanes];
        uint64_t heads[kLanes];
        for (int i = 0; i < group.n; ++i) {
            const int64_t q = group.first + i;
            Proposal& own = proposals_[q];
            heads[i] = masses[i].take(*codes_.scan, view(q, tile, exponent_.of(est + i * kTile, all_.queries[q], linked), {part[i], bend[i]}), own.edge, own.rate.lift);
            own.sums[tile] = masses[i].sum;
            if (weighted_) own.spreads[tile] = masses[i].spread;
        }
        for (int i = 0; i < group.n; ++i) {
            const int64_t q = group.first + i;
            if (!all_.queries[q].usable) continue;
            const Proposal& own = proposals_[q];
            Found& to = found_.at(thread, q);
            if (heads[i] != 0) {
                const float* at = exponent_.of(est + i * kTile, all_.queries[q], linked);
                each_bit(heads[i], [&](int c) {
                    to.heads.push_back({static_cast<int32_t>(tile * kTile + c), std::exp(std::min(80.f, (at[c] - own.edge) * exponent_.scale))});
                    to.mass += to.heads.back().mass;
                });
                sampler_.lower(q, own, to.mass);
            }
            if (own.rate.most > 0) to.flooded |= !sampler_.drop(q, own, tile, masses[i], to.points);
        }
    }

    // What all threads gathered for a query.
    const Proposal& of(int64_t q) {
        Proposal& own = proposals_[q];
        bool flooded = false;
        found_.each(q, [&](Found& found) {
            own.heads.insert(own.heads.end(), found.heads.begin(), found.heads.end());
            own.points.insert(own.points.end(), found.points.begin(), found.points.end());
            flooded |= found.flooded;
        });
        if (flooded) own.points.clear();
        std::sort(own.heads.begin(), own.heads.end(), [](const Proposal::Head& a, const Proposal::Head& b) { return a.id < b.id; });
        return own;
    }

  private:
    struct Found {
        std::vector<Proposal::Head> heads;
        double mass = 0;  // of these heads
        std::vector<Proposal::Point> points;
        bool flooded = false;
    };

    void radii(size_t g, int64_t tile, float* part, float* bend) const {
        alignas(64) float unused[kMostLanes];
        codes_.scan->radii(codes_.tile(tile), codes_.layout, wide_[g], exponent_.slope, unused, part, bend);
    }
    TileView view(int64_t q, int64_t tile, const float* est, Stretch off) const {
        return {est, codes_.shares(tile), exponent_.scale, off, allowed_in(question_, q, codes_.rows->vocab, tile)};
    }

    // The edge of each query's heads: an estimate that about effort.heads classes reach, by some of the tiles.
    void learn_edges() {
        const int64_t n = static_cast<int64_t>(all_.queries.size()), step = std::max<int64_t>(1, std::min(codes_.count / kPilotTiles, kPilotTiles));
        const int64_t tiles = (codes_.count + step - 1) / step;
        const int threads = question_.threads;
        std::vector<float> seen(n * tiles * kTile);
        std::vector<Stretch> offs(n * tiles);
        scan_tiles(codes_, all_.groups, step, threads, [&](int, size_t g, int64_t tile, const float* est) {
            const CodeGroup& group = all_.groups[g];
            alignas(64) float part[kMostLanes], bend[kMostLanes], linked[kTile];
            radii(g, tile, part, bend);
            for (int i = 0; i < group.n; ++i) {
                const int64_t q = group.first + i, at = q * tiles + tile / step;
                const TileView own = view(q, tile, exponent_.of(est + i * kTile, all_.queries[q], linked), {part[i], bend[i]});
                for (int c = 0; c < kTile; ++c) seen[at * kTile + c] = own.allowed >> c & 1 ? own.est[c] : -std::numeric_limits<float>::infinity();
                offs[at] = own.off;
            }
        });
        const auto rank = static_cast<size_t>(std::max<int64_t>(2, effort_.heads / step));
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
        Proposal& own = proposals_[q];
        own.edge = std::max(best.front(), -1e30f);
        if (!(question_.delta > 0)) return;
        double mass = 0, gaps = 0, moment = 0, leaning = 0;
        for (int64_t t = 0; t < tiles; ++t) {
            TileMasses at;
            const TileView tile{seen + t * kTile, codes_.shares(t * step), exponent_.scale, offs[t], ~uint64_t{0}};
            at.take(*codes_.scan, tile, own.edge, 0);
            mass += at.sum.mass, gaps += at.sum.gap();
            if (!weighted_) continue;
            float of[3];
            codes_.scan->surprisals(tile.est, tile.scale, own.edge, 0, at.mass, at.shared, of);
            moment += of[0], leaning += offs[t].part * (of[1] + 0.5 * offs[t].most() * at.sum.shared);
        }
        const auto times = static_cast<double>(step);
        double heads = 0, first = 0, second = 0;  // some of those that the scan is going to find, and the largest of them
        for (float one : best) {
            const double y = std::max(-80.f, std::min(80.f, (one - own.edge) * exponent_.scale)), one_mass = std::exp(y);
            heads += one_mass, moment += y * one_mass;
            second = std::max(second, std::min(first, one_mass)), first = std::max(first, one_mass);
        }
        own.rate.least = kSure * mass * times + first + second + kSureOfHeads * (heads - first - second) * times;
        double weighed = gaps;
        if (weighted_) {
            own.rate.lift = std::fabs(moment / (mass + heads)) + 1, own.rate.guessed = (mass + heads) * times, own.sure = kSure * mass * times;
            weighed = own.rate.lift * gaps + leaning;
        }
        if (!(gaps > 0) || !std::isfinite(gaps)) return;
        own.rate.expect(mass * times, gaps * times, weighed * times, question_.eps, question_.delta / 4, codes_.rows->vocab, effort_.most_points);
        own.rate.once *= kMorePoints, own.rate.squared *= effort_.squares;
        own.key = key_of(all_.queries[q].hidden, codes_.rows->dim, question_.seed);
        sampler_.begin(q, own, heads);
    }

    const Codes& codes_;
    const Question& question_;
    const PreparedCodes& all_;
    Exponent exponent_;
    bool weighted_;  // a functional's gaps
    Effort effort_;
    std::vector<ScanRadii> wide_{};  // of a group, for all classes at once
    std::vector<Proposal> proposals_;
    PointSampler sampler_;
    Gathered<Found> found_;
};

}  // namespace headlong
