// What a bet draws classes from: every class in proportion to how far its term may be off its estimate.
//
//     mass_i = exp(scale (f_i - edge)),   gap_i = part s_i (1 + bend s_i) mass_i,   P(class i) = gap_i / sum of gaps
//
// f_i is the estimate under the link and s_i the class's share of its tile's radius; part and bend are the tile's (ScanKernels::radii).
// Classes at the edge or above it, the heads, are scored exactly, and are in no sum. Of a functional with surprisals as weights the gaps are
// those of y mass, with y = scale (f - edge): they are weighted by lift - y + part (1 + bend) / 2, see codes/entropy.cpp.
//
// Points of a Poisson process fall on the gaps during the scan: those with marks below a rate are `rate` of them for a gap of one on
// average. How many a bet takes falls as the mass that is known grows, and so do the marks that are kept while the scan goes on; what is left
// at its end does not depend on the order of the tiles.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "codes/rotated.h"

namespace headlong {

constexpr double kSumError = 0x1p-17;  // of sums of masses in float32, relatively

// How far masses of a tile may be off, by their shares.
struct Stretch {
    float part, bend;
    float most() const { return part * (1 + bend); }  // of any of them
};

// How many points a bet takes for a gap of one, by the mass that is known: once / known + squared / known^2.
struct PointRate {
    double most = 0;               // the largest rate
    double once = 0, squared = 0;
    double least = 0;              // a guess of what the scan is going to know: no more points are dropped than that takes
    double lift = 0, guessed = 1;  // where gaps are weighted: by a guess of the mean surprisal at the edge, and of the mass of all classes

    // Falls as more is known. The mean surprisal is log S at most: with an S that is larger than was guessed, it is.
    double at(double known) const {
        known = std::max(known, least);
        const double more = lift > 0 ? std::max(1.0, std::min(known / guessed, std::log(known) / lift)) : 1;
        return std::min(most, (once + squared * more / known) / known * more);
    }
    // Where intervals of `gaps` around `mass` are expected, and a bet within `aim` on gaps that are `weighed` in all.
    void expect(double mass, double gaps, double weighed, double aim, double delta, int64_t vocab, double most_points) {
        // A guess of the mean of X^2 by errors that use a part of their radii.
        const double wide = std::log1p(gaps / mass), used = wide / kappa_of(2.0 * static_cast<double>(vocab), delta), largest = std::expm1(wide);
        const double square = (std::exp(2 * used * used) - 2 * std::exp(used * used / 2) + 1) / (largest * largest);
        const double odds = 1.9 * (std::log(2 / delta) + 0.8);  // as draws_for has them
        once = odds * 0.5 / aim, squared = odds * std::min(0.1, std::max(2e-4, square)) * weighed / (aim * aim);
        most = most_points / weighed;
    }
};

struct Proposal {
    // What is drawn from a tile, all classes together.
    struct Sum {
        float mass, shared;  // of masses, and of shares of them: gaps in units of part
        Stretch off;
        // 0 where no class is; a mass that is there is never 0 (kFloor), so that an infinite part of it is infinite.
        double gap() const { return shared > 0 ? static_cast<double>(shared) * off.part : 0; }
    };
    // Where gaps are weighted: sums of mass * y, of -y * share * mass, of share * mass.
    struct Spread {
        float moment, leaning, shared;
    };
    struct Head {
        int32_t id;
        float mass;  // as it is estimated
    };
    // A point fell on the gap of a class; the mark is the rate from which on it is there.
    struct Point {
        float mark;
        int32_t id;
        float mass, gap;
    };

    float edge = 0;
    PointRate rate;
    double sure = 0;              // where gaps are weighted: most of the mass beside the heads, as it was guessed
    uint64_t key = 0;             // of the points' noise: the query's own
    std::vector<Sum> sums;        // [tiles]
    std::vector<Spread> spreads;  // [tiles], where gaps are weighted
    std::vector<Head> heads;      // rising
    std::vector<Point> points;
};

// The classes of a tile as a query sees them: what the exponent makes of estimates, and which may be answered.
struct TileView {
    const float *est, *shares;
    float scale;
    Stretch off;
    uint64_t allowed;
};

// Their masses, and gaps in units of part.
struct TileMasses {
    alignas(64) float mass[kTile], shared[kTile];
    Proposal::Sum sum;
    Proposal::Spread spread;

    // Gaps are weighted where `lift` is not 0. Returns which classes are heads.
    uint64_t take(const ScanKernels& scan, const TileView& tile, float edge, double lift) {
        float sums[2], of[3];
        const uint64_t heads = scan.masses(tile.est, tile.shares, tile.scale, edge, tile.off.bend, tile.allowed, mass, shared, sums);
        sum = {sums[0], sums[1], tile.off};
        if (lift == 0) return heads;
        scan.surprisals(tile.est, tile.scale, edge, static_cast<float>(lift) + 0.5f * tile.off.most(), mass, shared, of);
        spread = {of[0], of[1], sums[1]};
        sum.shared = of[2];
        return heads;
    }
};

// What a class is drawn as.
struct DrawnClass {
    int32_t id, times;
    double mass, gap;
};

// The classes on whose gaps points fall, which ascend. before [tiles + 1]: sums of gaps; read(tile, mass, gap) gives those of its classes [64].
template <typename Read>
std::vector<DrawnClass> classes_at(const std::vector<double>& points, const std::vector<double>& before, const Read& read) {
    const auto tiles = static_cast<int64_t>(before.size()) - 1;
    std::vector<DrawnClass> found;
    double mass[kTile], gap[kTile], upto = 0;
    int64_t tile = -1, next = 0;
    int place = 0;
    for (double point : points) {
        while (next + 1 < tiles && before[next + 1] <= point) ++next;
        if (next != tile) tile = next, place = 0, upto = before[tile], read(tile, mass, gap);
        int last = -1;  // with a gap, where roundings lead beyond the tile
        for (int i = place; i < kTile; ++i) {
            if (!(gap[i] > 0)) continue;
            last = i;
            if (point < upto + gap[i]) break;
            int more = i + 1;
            while (more < kTile && !(gap[more] > 0)) ++more;
            if (more == kTile) break;
            upto += gap[i], place = more;
        }
        if (last < 0) continue;
        const auto id = static_cast<int32_t>(tile * kTile + last);
        if (!found.empty() && found.back().id == id) ++found.back().times;
        else found.push_back({id, 1, mass[last], gap[last]});
    }
    return found;
}

}  // namespace headlong
