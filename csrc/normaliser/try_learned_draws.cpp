// How far a normaliser would be off if more or fewer rows were drawn: what the numbers of previews/learned_draw_counts.py are tried on.
//
// Thousands of queries, a dozen numbers, several draws of each and two ways to ask would read the layer thousands of times. So all
// logits of a few queries at once are computed first, in one pass over the rows that also gives their exact normalisers, and what is drawn
// takes its logits from there. A call reads rows in float32: an estimate that is as near to eps as that may move it is made again, as
// the call makes it. So which tries are beyond eps is what calls would have said.
#include <algorithm>
#include <cmath>
#include <limits>

#include "normaliser/by_learned_draws.h"
#include "normaliser/draw_points.h"
#include "runtime/pool.h"
#include "runtime/shared_work.h"

namespace headlong {
namespace {

using namespace lines;

constexpr int64_t kAtOnce = 64, kKept = 1 << 22;  // queries, and the logits of theirs that are kept at a time

// What is tried: the ways to ask, as how many ids each wants beside the normaliser, and the numbers that each of them tries.
struct Tries {
    const std::vector<int64_t>& ways;
    const std::vector<std::vector<double>>& spends;
    int tries;

    size_t each() const {
        size_t numbers = 0;
        for (const auto& some : spends) numbers += some.size();
        return numbers * static_cast<size_t>(tries);
    }
};

// The look of one query as it was before anything was drawn from it.
struct Fresh {
    explicit Fresh(const Look& look) : est(copy(look.est)), rad(copy(look.rad)), gaps(copy(look.gaps)) {}
    static std::vector<float> copy(const Scratch<float>& from) { return {from.data(), from.data() + from.size()}; }

    // Where a line has written: the classes that were scored, and blocks that were weighed.
    void put_back(Look& look, const Line& line, const std::vector<Scored>& scored) const {
        for (const Scored& s : scored) look.est[s.id] = est[s.id];
        for (size_t b = 0; b < line.weighed.size(); ++b)
            if (line.weighed[b]) std::copy_n(rad.data() + b * kBlock, kBlock, look.rad.data() + b * kBlock);
        std::copy(gaps.begin(), gaps.end(), look.gaps.data());
    }

    std::vector<float> est, rad, gaps;
};

// A query and all that is known of it.
struct Truth {
    const double* z;  // every logit
    double lse = 0, error = 0;
};

double exact_lse(const Executor& e, const double* z, double beta) {
    double shift = -kInf, sum = 0;
    std::vector<double> f(e.vocab);
    for (int64_t i = 0; i < e.vocab; ++i) shift = std::max(shift, f[i] = e.linked(z[i]) * beta);
    for (int64_t i = 0; i < e.vocab; i += kBlock) sum += e.kernels->sum_exps(&f[i], std::min<int64_t>(kBlock, e.vocab - i), shift);
    return shift + std::log(sum);
}

// How far off the estimates of one number and way are.
void try_spend(const Executor& e, Look& look, const Question& question, double spend, const std::vector<Scored>& scored, const Truth& truth,
               const Fresh& fresh, int tries, double* out) {
    Line line = start_line(e, look, 0, question, spend, scored);
    if (line.likely < most_rows(e, look)) {
        const double* hidden = look.hidden.data();
        const uint64_t key = key_of(hidden, e.dim, question.seed);
        std::vector<Share> all(1);
        Share& own = all.front();
        Answer answer;
        for (int64_t c = 0; c < chunks_of(e); ++c) weigh_chunk(e, look, 0, question.beta, c, line, own.wide);
        for (size_t level = 0; level < e.deeper.size(); ++level) look_closer(e, look, 0, question.beta, line, level, own.wide, &own.bytes);
        const auto off = [&](uint64_t named, const double* every) {
            std::vector<double> sums(chunks_of(e));
            Rows rows(e, hidden, question.beta, line.w, sums, every);
            for (int64_t c = 0; c < chunks_of(e); ++c) draw_chunk(e, look, 0, question.beta, line, c, named, rows);
            draw_wide(line, own.wide, named, rows);
            rows.close();
            own.rows = rows.count();
            return truth.error + std::fabs(estimate(e, look, line, all, sums, answer) - truth.lse);
        };
        for (int t = 0; t < tries; ++t) {
            const uint64_t named = mix(key + static_cast<uint64_t>(t));
            out[t] = off(named, truth.z);
            if (std::fabs(out[t] - question.eps) <= 2 * line.lost) out[t] = off(named, nullptr);
        }
    }
    fresh.put_back(look, line, scored);
}

// One query, asked in every way: [the numbers of all ways, one way after the other][tries].
void try_one(const Executor& e, const double* hidden, int64_t row, Question question, const Tries& all, const Truth& truth, double* out) {
    const auto looked = [&](int64_t k) {
        question.k = k;
        Look look = start_look(e, e.preview, hidden, {row}, 1);
        look.est.resize(e.padded);
        look.rad.resize(e.padded);
        look.note_gaps(e.padded);
        look_at_all(e, look, question);
        return look;
    };
    for (size_t way = 0; way < all.ways.size(); out += all.spends[way++].size() * static_cast<size_t>(all.tries)) {
        Look look = looked(all.ways[way]);
        Answer answer;
        std::vector<Scored> scored;
        std::vector<float> est, upper;
        if (look.finish_densely[0].load() != 0) continue;
        if (question.k > 0 && !best_of(e, look, 0, question.k, 1, answer.best, scored, est, upper, answer)) continue;
        const Interval sure = normaliser(e, look, 0, question, scored, est, upper);
        if (sure.error + dot_error(e, look.hidden.data()) <= question.eps || !learned(e, look, 0, question)) continue;
        const Fresh fresh(look);
        for (size_t s = 0; s < all.spends[way].size(); ++s)
            try_spend(e, look, question, all.spends[way][s], scored, truth, fresh, all.tries, out + s * static_cast<size_t>(all.tries));
    }
}

}  // namespace

std::vector<double> try_draws(const Executor& e, const double* hidden, int64_t count, const Question& question,
                              const std::vector<int64_t>& ways, const std::vector<std::vector<double>>& spends, int tries) {
    const Tries all{ways, spends, tries};
    std::vector<double> out(static_cast<size_t>(count) * all.each(), std::numeric_limits<double>::quiet_NaN());
    const int64_t at_once = std::max<int64_t>(1, std::min(kAtOnce, kKept / e.vocab));
    Scratch<double> z(std::min(at_once, count) * e.vocab);
    for (int64_t start = 0; start < count; start += at_once) {
        std::vector<int64_t> rows(std::min(at_once, count - start));
        std::iota(rows.begin(), rows.end(), start);
        every_logit(e, hidden, rows, question, [&](int64_t, int q, int64_t first, int64_t n, const double* some) {
            std::copy_n(some, n, z.data() + q * e.vocab + first);
        });
        Turns<int64_t> next;
        const auto n = static_cast<int64_t>(rows.size());
        run_parallel(static_cast<int>(std::min<int64_t>(question.threads, n)), [&](int) {
            for (int64_t i = next++; i < n; i = next++) {
                check_in();
                const double* own = z.data() + i * e.vocab;
                const double lse = exact_lse(e, own, question.beta);
                const Truth truth{own, lse, dot_error(e, hidden + rows[i] * e.dim) + 0x1p-52 * (static_cast<double>(e.vocab) + 16 + 4 * std::fabs(lse))};
                try_one(e, hidden, rows[i], question, all, truth, out.data() + static_cast<size_t>(rows[i]) * all.each());
            }
        });
    }
    return out;
}

}  // namespace headlong
