// One query on its way through codes, and what its verbs share: the scan of all tiles, exponents of estimates, rows that are scored.
#pragma once

#include <algorithm>
#include <cmath>

#include "codes/draw_points.h"
#include "codes/proposal.h"
#include "codes/rotated.h"
#include "executor/verbs.h"
#include "runtime/prefetch.h"
#include "runtime/shared_work.h"

namespace headlong {

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

struct QueryState {
    const Codes& codes;
    const PreparedCodes& prepared;
    int64_t q;
    const Question& question;
    int threads;  // of this query
    Answer& answer;

    const Executor& e = *codes.rows;
    const CodeQuery& query = prepared.queries[q];
    const double* hidden = query.hidden;
    const TrueOrder order{*e.kernels, e, hidden};
    const Exponent exponent{codes, question.beta};

    uint64_t allowed(int64_t tile) const { return allowed_in(question, q, e.vocab, tile); }
    void score(std::vector<Scored>& rows) const {
        headlong::score(e, hidden, rows, threads);
        answer.rows += static_cast<int64_t>(rows.size());
    }
    // The rows of a bet, all of them asked for before the first is read.
    void score_asked(std::vector<Scored>& rows) const {
        for (const Scored& row : rows) prefetch_row(e.weight, static_cast<int64_t>(e.row_bytes()), row.id);
        score(rows);
    }
    // How many classes may be scored one by one before a full scan is better: rows that are fetched in no order take about four times as
    // long as rows that are read in one go.
    int64_t most_scored() const { return std::max<int64_t>(256, e.vocab / 4); }
    // What masses may be too large by that were put at the floor, all together and in units of the edge.
    double too_large() const { return static_cast<double>(e.vocab) * std::exp(kFloor * (1 - 0x1p-10)); }
};

// Below a logit, in float32 and without what joins every estimate.
float floor_of(double z, double add);

// codes/ids.cpp: the k best; false where so many classes are left open that a full scan is better
bool best_of_codes(const QueryState& state, double kappa, std::vector<Hit> hits, float threshold);
// codes/normaliser.cpp, codes/entropy.cpp: by a bet that is lost with probability `delta`; false where a full scan is better
bool normaliser_of_codes(const QueryState& state, const Proposal& proposal, double delta);
bool entropy_of_codes(const QueryState& state, const Proposal& proposal, double delta);
// The classes on whose gaps points fall, which ascend.
std::vector<DrawnClass> drawn_at(const QueryState& state, const Proposal& proposal, double lift, const std::vector<double>& before, const std::vector<double>& points);
// codes/sides.cpp: below 0 where a class is in the query's nucleus, above 0 where it is not, 0 where neither is known; and the normaliser by
// intervals, where there is none. Wrong as seldom as intervals are, and as the bet is lost.
int side_of(const QueryState& state, const ScanRadii& wide, const float* estimates, const Scored& x, const NucleusBet& on);
// codes/draws.cpp: draws of all classes that are not in their nucleus are drawn again, of those that come before them: `inside` says that all are in it then.
// Where the best hold the nucleus, `least` and `most` of them are in it, as closely as the draws among these and their error ask for.
// Of what may fail `delta` is for the intervals of all classes, and `budget` for bets.
class TileKeys;
void draw_into_nucleus(const QueryState& state, TileKeys& keys, double delta, double budget);

}  // namespace headlong

