// What is done for a group of queries and for one of them, a file for each verb. Functions that only one file needs are not here.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>

#include "executor/executor.h"
#include "executor/true_order.h"

namespace headlong {

// A class that may be among the best: what it is estimated at, and what it may be at most.
struct Hit {
    int32_t id;
    float est, upper;
};
inline bool by_estimate(const Hit& a, const Hit& b) { return a.est > b.est || (a.est == b.est && a.id < b.id); }
inline bool by_upper(const Hit& a, const Hit& b) { return a.upper > b.upper || (a.upper == b.upper && a.id < b.id); }

using Visit = std::function<void(int64_t piece, int q, int64_t first, int64_t n, const double* z)>;

// The k best of two lists, the best first.
inline void join_best(std::vector<Scored>& best, const std::vector<Scored>& more, int64_t k, const TrueOrder& order) {
    const auto known = static_cast<std::ptrdiff_t>(best.size());
    best.insert(best.end(), more.begin(), more.end());
    std::sort(best.begin() + known, best.end(), order);
    std::inplace_merge(best.begin(), best.begin() + known, best.end(), order);
    if (static_cast<int64_t>(best.size()) > k) best.resize(k);
}

// Candidates that are scored before the threshold is looked at again: joining them reads the k best.
inline size_t at_once(int64_t k) { return static_cast<size_t>(std::max<int64_t>(32, k / 16)); }

// The k best of hits: the best estimates are scored exactly, their worst is the threshold from then on, and what can still reach it is
// scored, best first, until nothing can. score(rows) says what rows come to.
template <typename Score>
struct BestOfHits {
    const TrueOrder& order;
    int64_t k;
    std::vector<Scored>& best;
    Score score;

    // Scores the hits with the best estimates, which come to the front; how many.
    size_t first(std::vector<Hit>& hits) const {
        const size_t some = std::min<size_t>(k, hits.size());
        if (some == 0) return 0;
        std::nth_element(hits.begin(), hits.begin() + (some - 1), hits.end(), by_estimate);
        best.clear();
        take(hits, 0, some);
        return some;
    }
    // Scores what of the hits behind `first` reaches floor(), `some` at once. False where those are more than `most`.
    template <typename Floor>
    bool rest(std::vector<Hit>& hits, size_t first, int64_t most, size_t some, const Floor& floor) const {
        const auto reach = floor();
        const auto open = std::partition(hits.begin() + first, hits.end(), [&](const Hit& hit) { return hit.upper >= reach; });
        if (open - (hits.begin() + first) > most) return false;
        std::sort(hits.begin() + first, open, by_upper);
        const auto stop = static_cast<size_t>(open - hits.begin());
        for (size_t from = first; from < stop && !(hits[from].upper < floor());) {
            size_t to = from;
            while (to < stop && to < from + some && !(hits[to].upper < floor())) ++to;
            take(hits, from, to);
            from = to;
        }
        order.settle(best);
        return true;
    }

  private:
    void take(const std::vector<Hit>& hits, size_t from, size_t to) const {
        std::vector<Scored> rows;
        for (; from < to; ++from) rows.push_back({hits[from].id, 0});
        score(rows);
        join_best(best, rows, k, order);
    }
};
template <typename Score>
BestOfHits(const TrueOrder&, int64_t, std::vector<Scored>&, Score) -> BestOfHits<Score>;

// Some rows of a batch as a batch of their own: their vectors, their masks, and what is asked of them.
struct SomeRows {
    SomeRows(const double* all, const std::vector<int64_t>& which, const Question& asked, int64_t dim, int64_t vocab) : question(asked) {
        for (int64_t row : which) {
            hidden.insert(hidden.end(), all + row * dim, all + (row + 1) * dim);
            if (asked.mask_per_row) masks.insert(masks.end(), asked.mask + row * vocab, asked.mask + (row + 1) * vocab);
        }
        if (asked.mask_per_row) question.mask = masks.data();
    }

    // Puts answers of these rows in the place of others, whose reads were a part of what they took.
    static void put_back(std::vector<Answer> found, const std::vector<int64_t>& which, std::vector<Answer>& answers) {
        for (size_t i = 0; i < which.size(); ++i) {
            Answer& answer = answers[which[i]];
            found[i].rows += answer.rows;
            found[i].bytes += answer.bytes;
            answer = std::move(found[i]);
        }
    }

    std::vector<double> hidden;
    std::vector<uint8_t> masks;
    Question question;
};

// Exponents of a query's best class that float32 has room around: beyond, and where one became infinite, float64 is to decide.
constexpr double kMostShift = 1e30;

// executor/svd_softmax.cpp: published answers, which are not proved
std::vector<Answer> ask_preview(const Executor& e, const double* hidden, int64_t count, const Question& question);
std::vector<Answer> sample_preview(const Executor& e, const double* hidden, int64_t count, const std::vector<SampleRule>& rules, const Question& question,
                                   std::vector<Draw>* draws);

// executor/rows.cpp: logits of some rows
void score(const Executor& e, const double* hidden, std::vector<Scored>& rows, int threads);
// What float32 arithmetic may add to lse: link, temperature and shift of terms within 64 nats of the largest one.
double float_error(const Executor& e, double shift, double beta);
// What float64 accumulation may add to an exact logit, and the link to its exponent.
double dot_error(const Executor& e, const double* hidden);

// codes/prepare.cpp: draws are made from a seed and the query's content, so that a query has one answer
uint64_t key_of(const double* hidden, int64_t dim, uint64_t seed);

// sampling/filters.cpp: how many of masses that fall are in the nucleus, `target` being top_p of all: a class stays while those better than
// it have less, the best whatever comes
size_t nucleus_size(const std::vector<double>& mass, double target);

// sampling/filters.cpp: of classes sorted by logit, what top_p and min_p leave; `total`: the mass that top_p is of, in units of the first's,
// 0 where no others are
std::vector<Scored> filtered(const Executor& e, std::vector<Scored> sorted, const SampleRule& rule, double total = 0);
// The largest key link(z) / T + gumbel of some classes, and its place among them.
Draw pick(const Executor& e, const Scored* kept, size_t count, const SampleRule& rule, uint32_t draw, size_t* place = nullptr);
// What the best classes of an answer and its normaliser say of draws by a rule: `more` where classes behind them may pass, `weigh` where the
// normaliser is to be asked for, `all` where every logit is to decide. whole: there are no other classes.
enum class Verdict { drawn, more, weigh, all };
Verdict draw_among(const Executor& e, Answer& answer, bool whole, const SampleRule& rule, double eps, Draw* draws);
// Of a share: how far below another it is where roundings of logits cannot have put it there.
constexpr double kSurely = 1 - 0x1p-20;
// Whether one of the largest keys of all classes is of none of the best.
bool draws_beyond(const Answer& answer);

// executor/dense_pass.cpp: every row in float64; sampling/dense.cpp
int64_t pieces(const Executor& e);
bool all_zero(const Executor& e, const double* hidden);
double exact_error(const Executor& e, const double* hidden, double beta, double lse);
void every_logit(const Executor& e, const double* hidden, const std::vector<int64_t>& rows, const Question& question,
                           const Visit& visit);
void finish(const Executor& e, const double* hidden, const std::vector<int64_t>& rows, const Question& question,
                      std::vector<Answer>& answers);
// Draws of rows by a rule each, from every logit; and, where eps is finite, the normaliser and the mass that is kept.
void finish_samples(const Executor& e, const double* hidden, const std::vector<int64_t>& rows, const Question& question,
                              const std::vector<SampleRule>& rules, std::vector<Draw>& draws, std::vector<Answer>& answers);
// The draws of one row whose logits are [vocab], -inf where a class is not there; hidden: null where they are estimates.
void draw_from_all(const Executor& e, const double* z, const double* hidden, const SampleRule& rule, double eps, Draw* draws, Answer& answer);

}  // namespace headlong
