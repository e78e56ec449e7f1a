// The scan of all tiles by some threads, each tile once for every group of queries.
#pragma once

#include <algorithm>
#include <cmath>

#include "codes/rotated.h"
#include "executor/beliefs.h"
#include "normaliser/betting.h"
#include "runtime/shared_work.h"

namespace headlong {

constexpr double kSumError = 0x1p-17;  // of sums of masses in float32, relatively

// visit(thread, g, tile, est) for tiles 0, step, 2 step, ... and group g; est [lanes][64]
template <typename Visit>
void scan_tiles(const Codes& codes, const std::vector<CodeGroup>& groups, int64_t step, int threads, const Visit& visit) {
    constexpr int64_t kMostRun = 16;
    const int64_t count = (codes.count + step - 1) / step;
    Turns<int64_t> next;
    run_parallel(count * codes.layout.bytes * static_cast<int64_t>(groups.size()) < (1 << 15) ? 1 : threads, [&](int thread) {
        alignas(64) float est[kLanes * kTile];
        while (true) {
            const int64_t many = std::max<int64_t>(1, std::min<int64_t>(kMostRun, (count - std::min(count, next.load())) / (2 * threads)));
            const int64_t first = next.fetch_add(many), stop = std::min(count, first + many);
            if (first >= count) return;
            for (int64_t t = first; t < stop; ++t) {
                check_in();
                const int64_t tile = t * step;
                for (size_t g = 0; g < groups.size(); ++g) {
                    codes.scan->estimate(codes.tile(tile), codes.layout, groups[g].passes.data(), static_cast<int>(groups[g].passes.size()), groups[g].lanes,
                                         g == 0 ? step * codes.layout.bytes : 0, est);
                    visit(thread, g, tile, est);
                }
            }
        }
    });
}

// Which classes of a tile are there and allowed by a mask. Those that pad the last tile are not there, whatever its numbers say.
inline uint64_t allowed_in(const Question& question, int64_t q, int64_t vocab, int64_t tile) {
    const int64_t n = std::min(kTile, vocab - tile * kTile);
    if (question.mask == nullptr) return ~uint64_t{0} >> (kTile - n);
    const uint8_t* mask = question.mask + (question.mask_per_row ? q * vocab : 0) + tile * kTile;
    uint64_t bits = 0;
    for (int64_t i = 0; i < n; ++i) bits |= static_cast<uint64_t>(mask[i] != 0) << i;
    return bits;
}

// How masses are made of estimates: exp(scale (f - edge)), f = estimate + <centre, hidden> under an affine link, whose scale is there, and
// link(that) under others; radii are stretched by slope.
struct Exponent {
    const Codes& codes;
    bool affine;
    double beta, factor;
    float scale, slope;

    Exponent(const Codes& all, double temper)
        : codes(all), affine(all.rows->link.form == LinkForm::affine),
          beta(temper), factor(affine ? all.rows->link_a * temper : temper), scale(static_cast<float>(factor)),
          slope(static_cast<float>(all.rows->link.form == LinkForm::softcap ? temper : all.rows->link_a * temper)) {}
    // The estimates of a tile, or what the link makes of them in `own`.
    const float* of(const float* est, const CodeQuery& query, float* own) const {
        if (affine) return est;
        codes.scan->linked(est, static_cast<float>(query.add), codes.rows->link, own);
        return own;
    }
    // What float32 may have lost of them, in logits.
    double lost(const CodeQuery& query) const {
        const Executor& e = *codes.rows;
        if (affine) return 0;
        const double own = e.link.form == LinkForm::softcap ? e.link_a * 0x1p-19 : e.link.slop / std::max(e.link_a, 1e-30);
        return own + 0x1p-22 * std::fabs(query.add) + 0.25 * query.constant;
    }
    // scale * f of an exact logit, less what `edge` stands for.
    double above(double z, const CodeQuery& query, float edge) const { return ((affine ? z - query.add : codes.rows->linked(z)) - edge) * factor; }
    // What `edge` stands for.
    double at(const CodeQuery& query, float edge) const { return affine ? (query.add + edge) * factor + codes.rows->link_b * beta : edge * factor; }
};

// A class that a point fell on, in proportion to its gap; the mark is the rate from which on it is there.
struct CodeDraw {
    float mark;
    int32_t id;
    float mass, gap;
};

// A class behind the edge, and its mass as it is estimated.
struct CodeHead {
    int32_t id;
    float mass;
};

// How far masses of a tile may be off, by their shares.
struct Stretch {
    float part, bend;
    float most() const { return part * (1 + bend); }  // of any of them
};

// The classes behind a scan that may hold much of the mass; the sums of the others' masses, tile by tile, and how large a part of a mass
// its gap may be there; and points that fell on the gaps during the scan.
//
// Points are a Poisson process of classes and marks: those with marks below `rate` are `rate` of them for a gap of one on average. How many a
// bet takes falls as the mass that is known grows, and so do the marks that are kept while the scan goes on; what is left at its end does not
// depend on the order of the tiles.
struct CodeMasses {
    float edge = 0;
    double most = 0;               // the largest rate
    double once = 0, squared = 0;  // the rate that a bet takes is once / known + squared / known^2
    double least = 0;              // a guess of what the scan is going to know: no more points are dropped than that takes
    uint64_t key = 0;              // of the points' noise: the query's own
    struct Sum {
        float mass, shared;  // of masses, of shares of them
        Stretch off;         // gap = part * share * mass
        // 0 where no class is; a mass that is there is never 0 (kFloor), so that an infinite part of it is infinite.
        double gap() const { return shared > 0 ? static_cast<double>(shared) * off.part : 0; }
    };
    std::vector<Sum> sums;        // [tiles]
    // Of an entropy, whose gaps are weighted (codes/entropy.cpp): the weight of a class at the edge, and what other weights are made of.
    double lift = 0, guessed = 1, sure = 0;  // and guesses: of the mass of all classes, and of most of what the others have beside the heads
    struct Spread {
        float moment, leaning, shared;  // sums of mass * y, of -y * share * mass, of share * mass; y is the exponent of the mass
    };
    std::vector<Spread> spreads;  // [tiles], or none
    std::vector<CodeHead> heads;  // rising
    std::vector<CodeDraw> draws;

    // Falls as more is known. Weights of an entropy are by a guess of c, which is log S at most: with an S that is larger than was guessed, it is.
    double rate(double known) const {
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

// The masses of a tile's classes and shares of them, and their sums; returns which are heads. Of an entropy shares are weighted, by the
// weight that a class at the edge has without its tile's part, and their plain sums are in `spread`.
inline uint64_t masses_of_tile(const Exponent& exponent, const Question& question, int64_t q, int64_t tile, const float* est, Stretch off, float edge, double lift,
                               float* mass, float* shared, CodeMasses::Sum* sum, CodeMasses::Spread* spread) {
    const Codes& codes = exponent.codes;
    float sums[2];
    const uint64_t heads = codes.scan->masses(est, codes.shares(tile), exponent.scale, edge, off.bend, allowed_in(question, q, codes.rows->vocab, tile), mass, shared, sums);
    *sum = {sums[0], sums[1], off};
    if (spread == nullptr) return heads;
    float of[3];
    codes.scan->surprisals(est, exponent.scale, edge, static_cast<float>(lift) + 0.5f * off.most(), mass, shared, of);
    *spread = {of[0], of[1], sums[1]};
    sum->shared = of[2];
    return heads;
}

// codes/normaliser.cpp: scores rows of a bet, all of them asked for before the first is read
void score_asked(const Executor& e, const double* hidden, const Near& near, std::vector<Scored>& rows, int threads, Answer& answer);

// What masses may be too large by that were put at the floor, all together and in units of the edge.
inline double too_large(const Codes& codes) { return static_cast<double>(codes.rows->vocab) * std::exp(kFloor * (1 - 0x1p-10)); }

// What a class is drawn as.
struct CodeDrawn {
    int32_t id, times;
    double mass, gap;
};
// codes/normaliser.cpp: the classes on whose gaps some points fall, which ascend
std::vector<CodeDrawn> find_drawn(const Codes& codes, const PreparedCodes& all, int64_t q, const Question& question, const CodeMasses& masses, double lift,
                                  const std::vector<double>& before, const std::vector<double>& points);

// codes/ids.cpp: the k best; false where so many classes are left open that a full scan is better
bool best_of_codes(const Codes& codes, const PreparedCodes& all, int64_t q, const Question& question, double kappa, std::vector<Hit> hits, float threshold,
                   int threads, Answer& answer);
// codes/ids.cpp: below a logit, in float32 and without what joins every estimate
float floor_of(double z, double add);
// codes/normaliser.cpp: the normaliser; false where a full scan is better
bool normaliser_of_codes(const Codes& codes, const PreparedCodes& all, int64_t q, const Question& question, const CodeMasses& masses, double delta, int threads,
                         Answer& answer);
// codes/sides.cpp: below 0 where a class is in the nucleus of query q, above 0 where it is not, 0 where neither is known; and the normaliser
// by intervals, where there is none. Wrong as seldom as intervals are, and with probability `delta`.
int side_of(const Codes& codes, const PreparedCodes& all, int64_t q, const Question& question, const ScanRadii& wide, const float* estimates, double delta,
            const Scored& x, int threads, Answer& answer);
// codes/entropy.cpp: the entropy, and the normaliser on the way; false where a full scan is better
bool entropy_of_codes(const Codes& codes, const PreparedCodes& all, int64_t q, const Question& question, const CodeMasses& masses, double delta, int threads,
                      Answer& answer);

// How many of the classes may be scored one by one before a full scan is better: rows that are fetched in no order take about four
// times as long as rows that are read in one go.
inline int64_t most_scored(const Codes& codes) { return std::max<int64_t>(256, codes.rows->vocab / 4); }

}  // namespace headlong
