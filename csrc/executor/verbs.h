// What is done for a group of queries and for one of them, a file for each verb. Functions that only one file needs are not here.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>

#include "executor/beliefs.h"
#include "executor/executor.h"
#include "executor/look.h"
#include "executor/true_order.h"
#include "normaliser/betting.h"

namespace headlong {

using Resolve = std::function<Status(Look&, int, int, Answer&)>;  // look, query, threads it may use, answer
using Finish = std::function<void(const std::vector<int64_t>&)>;  // the rows of the batch that are left
using Visit = std::function<void(int64_t piece, int q, int64_t first, int64_t n, const double* z)>;
using TermOf = std::function<double(const Scored&)>;

inline bool by_budget(const Executor& e, const Look& look) { return e.budget > 0 && look.source == &e.preview; }

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

// Takes candidates first .. stop - 1, which come with falling upper ends, some at once, until none of those left can reach the
// threshold, which rises meanwhile.
template <typename Some, typename Upper, typename Threshold, typename Take>
void score_from_the_top(size_t first, size_t stop, const Some& some, const Upper& upper, const Threshold& threshold, const Take& take) {
    for (size_t at = first; at < stop && !(upper(at) < threshold());) {
        size_t to = at;
        for (const size_t most = some(); to < stop && to < at + most && !(upper(to) < threshold());) ++to;
        take(at, to);
        at = to;
    }
}

// executor/answer_batch.cpp: a batch in groups of queries, which look together or share a dense pass; executor/one_query.cpp: one of them
void over_groups(const Executor& e, const double* hidden, const std::vector<int64_t>& rows, const Question& question, bool dense_only,
                 const Resolve& resolve, const Finish& finish, std::vector<Answer>& answers);
Status resolve(const Executor& e, Look& look, int q, const Question& question, int threads, Answer& answer);

// executor/look.cpp, executor/threshold.cpp: looking at all classes
void raise_to(std::atomic<float>& threshold, float value);
void raise_threshold(const Executor& e, Look& look, int q, const Question& question);
Look start_look(const Executor& e, const Source& source, const double* hidden, const std::vector<int64_t>& rows, int threads);
void look_at_all(const Executor& e, Look& look, const Question& question, bool sample_alone = false);
double part_of_dense(const Executor& e, const Look& look);
double worth_scoring(const Executor& e, const Look& look);
double most_rows(const Executor& e, const Look& look);
double bearable_hits(const Executor& e, const Look& look, double bytes);
double bearable_hits_beforehand(const Executor& e, const Look& look, double bytes);

// executor/prepare.cpp: a query as a look wants it
void prepare(const Executor& e, const Source& source, Look& look);
std::vector<double> rotate_queries(const Executor& e, const Source& source, const Look& look);

// executor/best_ids.cpp: ids and exact rows; executor/svd_softmax.cpp
void score(const Executor& e, const double* hidden, std::vector<Scored>& rows, int threads);
bool best_of(const Executor& e, Look& look, int q, int64_t k, int threads, std::vector<Scored>& best,
                       std::vector<Scored>& scored, std::vector<float>& est, std::vector<float>& upper, bool drawn = false);
std::vector<Scored> spend_budget(const Executor& e, Look& look, int q, const Question& question, int threads, Interval& lse);
Status resolve_budget(const Executor& e, Look& look, int q, const Question& question, int threads, Answer& answer);

// normaliser/intervals.cpp, normaliser/by_proof.cpp
double float_error(const Executor& e, double shift, double beta);
double dot_error(const Executor& e, const double* hidden);
inline double half_width(double low, double high) { return low > 0 ? 0.5 * std::log(high / low) : kInf; }
double take_out(const Executor& e, Look& look, int q, const std::vector<Scored>& scored, double beta, float* shift);
Interval normaliser(const Executor& e, const Look& look, int q, const Question& question, const std::vector<Scored>& scored,
                              const std::vector<float>& est, const std::vector<float>& upper);
Scratch<float> radii(const Executor& e, const Look& look, int q, int threads);
// normaliser/joint_error.cpp
double rows_together(const Executor& e, const Look& look, int q, const Question& question);
std::optional<Status> close_together(const Executor& e, Look& look, int q, const Question& question, int threads, std::vector<Scored>& scored,
                                     Interval& lse, Answer& answer);
// normaliser/by_proof.cpp
Outlook refining(const Executor& e, const Look& look, int q, const Question& question);
Status refine(const Executor& e, Look& look, int q, const Question& question, int threads, std::vector<Scored>& scored,
                        Interval& lse, Answer& answer);

// normaliser/gaps.cpp: what is scored and what is drawn from
double allow_float32(const Executor& e, const double* hidden, const Question& question, Weighed& w);
void score_near(const Executor& e, const double* hidden, const Weighed& w, std::vector<Scored>& rows, int threads);
void weigh(const Executor& e, const Look& look, int q, double beta, int threads, Weighed& w);
bool score_widest(const Executor& e, Look& look, int q, float edge, double most, double beta, int threads, Weighed& w,
                  Scratch<double>& before, double* exact, std::vector<Scored>& scored);
// normaliser/widest_gaps.cpp: which of them
Wager cheapest_wager(const Executor& e, const Weighed& w, double exact, double aim, const Rule& rule, int threads, Answer& answer);

// normaliser/by_bet.cpp: the normaliser from a sample
Status bet(const Executor& e, Look& look, int q, const Question& question, double used, int threads, std::vector<Scored>& scored,
           Interval& lse, Answer& answer);
uint64_t key_of(const double* hidden, int64_t dim, uint64_t seed);
std::vector<double> sample_terms(const Executor& e, const double* hidden, const Weighed& w, const Scratch<double>& before,
                                 const std::vector<double>& points, int threads, const TermOf& term, Answer& answer);

// sampling/nucleus_from_intervals.cpp: the nucleus
Side side_of_nucleus(const Executor& e, Estimates& all, const Question& question, double top_p, const Scored& of, double odds, uint64_t key, int threads,
                     Answer& answer);

// sampling/nucleus_size.cpp: the nucleus of top_p where masses are known, `target` being top_p of all: how many of masses that
// fall, or of classes in any order, which those that stay are brought to the front of
struct Massive {
    int64_t id;
    double z, mass;
};
size_t nucleus_size(const std::vector<double>& mass, double target);
size_t select_nucleus(std::vector<Massive>& all, double target);

// sampling/sample.cpp, sampling/gumbel_keys.cpp: samples
Question question_of(const SampleRule& rule, const Question& question, int64_t vocab);
Status resolve_sample(const Executor& e, Estimates& all, const Question& question, const SampleRule& rule, int threads, Draw* draws, Answer& answer);
bool find_best(const Executor& e, Estimates& all, int64_t k, int threads, std::vector<Scored>& best, Answer& answer);
void score_known(const Executor& e, Estimates& all, std::vector<Scored>& rows, int threads, Answer& answer);
std::vector<Scored> filtered(const Executor& e, std::vector<Scored> sorted, const SampleRule& rule);
Draw pick(const Executor& e, const std::vector<Scored>& kept, const SampleRule& rule, uint64_t row, uint32_t draw);
bool best_keys(const Executor& e, Estimates& all, const SampleRule& rule, int64_t m, int threads, Keys& keys, std::vector<Keyed>& best, Answer& answer);
Status draw_filtered(const Executor& e, Estimates& all, const Question& question, const SampleRule& rule, int threads, Draw* draws, Answer& answer);

// executor/dense_pass.cpp: every row in float64; sampling/dense.cpp
int64_t pieces(const Executor& e);
bool all_zero(const Executor& e, const double* hidden);
void every_logit(const Executor& e, const double* hidden, const std::vector<int64_t>& rows, const Question& question,
                           const Visit& visit);
void finish(const Executor& e, const double* hidden, const std::vector<int64_t>& rows, const Question& question,
                      std::vector<Answer>& answers);
void finish_samples(const Executor& e, const double* hidden, const std::vector<int64_t>& rows, const Question& question,
                              const SampleRule& rule, std::vector<Draw>& draws, std::vector<Answer>& answers);

}  // namespace headlong
