#include "reader/reader.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "executor/verbs.h"
#include "reader/samples.h"
#include "runtime/scratch.h"

namespace headlong {
namespace {

constexpr double kNarrow = 1 - 0x1p-30;  // of a sum: more than its rounding, and that of most logits
constexpr double kNucleusEps = 0.01;      // from which normalisers have to go by blocks so that nuclei do, too
constexpr int64_t kFirst = 16;            // classes that a min-p filter asks for first; four times as many where they are not enough

// The best classes that filters are decided among at first; 0: that takes the mass of all.
int64_t first_of(const SampleRule& rule) { return rule.top_k > 0 ? rule.top_k : rule.min_p > 0 && rule.top_p >= 1 ? kFirst : 0; }

std::vector<Scored> scored_of(const std::vector<ScoredClass>& found, size_t most) {
    std::vector<Scored> some;
    for (size_t i = 0; i < std::min(most, found.size()); ++i) some.push_back({found[i].id, found[i].z});
    return some;
}

void draw_from(const Executor& e, const std::vector<Scored>& kept, const SampleRule& rule, int64_t row, Draw* draws) {
    for (int i = 0; i < rule.n; ++i) draws[i] = pick(e, kept, rule, row, i);
}

// The normaliser is that of the scored classes alone: a lower bound, and its error is infinite.
Answer best_of(const Executor& e, const SearchResult& found) {
    Answer answer;
    answer.best = scored_of(found.best, found.best.size());
    double sum = 0;
    for (const Scored& one : answer.best)
        if (std::isfinite(one.z)) sum += std::exp(e.linked(one.z) - e.linked(answer.best.front().z));
    answer.lse = sum > 0 ? e.linked(answer.best.front().z) + std::log(sum) : -kInf;
    answer.proved = found.done;
    answer.rows = found.rows;
    answer.bytes = found.bytes;
    return answer;
}

// What a search has to reach so that classes that it does not score leave a normaliser within eps.
Reach reach_for(double eps, double scale, int64_t vocab) {
    return {scale, std::log(static_cast<double>(vocab)) - std::log(std::expm1(1.8 * std::min(eps, 8.0)))};  // 1.8 < 2: roundings have the rest
}

// The k best and the normaliser of all classes: those that were not scored lie below the search's floor. What a logit's rounding adds to
// the error is `fixed`. False where the answer is further off than eps.
bool best_within(const Executor& e, const SearchResult& found, int64_t k, double eps, double fixed, Answer* answer) {
    if (!found.done || found.best.empty() || !std::isfinite(found.best.front().z)) return false;
    const double most = found.best.front().z, scale = e.link_a;
    double sum = 0;
    for (const ScoredClass& one : found.best) {
        if (!std::isfinite(one.z)) return false;
        sum += std::exp((one.z - most) * scale);
    }
    const double rest = static_cast<double>(e.vocab) * std::exp((static_cast<double>(found.floor) - most) * scale);
    const double half = 0.5 * std::log1p(rest / sum);
    answer->lse = e.linked(most) + std::log(sum) + half;
    answer->error = half * (1 + 0x1p-40) + fixed + 0x1p-52 * (static_cast<double>(found.best.size()) + 16 + 4 * std::fabs(answer->lse));
    if (!(answer->error <= eps)) return false;
    answer->best = scored_of(found.best, static_cast<size_t>(k));
    answer->proved = true;
    answer->rows = found.rows;
    answer->bytes = found.bytes;
    return true;
}

// The classes [found.best, falling] that are in the nucleus whatever mass the others have that were not scored; none where that
// is in doubt.
std::vector<Scored> nucleus_of(const SearchResult& found, double top_p, double scale, int64_t vocab) {
    std::vector<Scored> best;
    std::vector<double> mass;
    double sum = 0;
    for (const ScoredClass& one : found.best) {
        if (!(one.z >= found.floor)) continue;
        if (!std::isfinite(one.z)) return {};
        best.push_back({one.id, one.z});
        mass.push_back(std::exp((one.z - best.front().z) * scale));
        sum += mass.back();
    }
    if (best.empty()) return {};
    const double rest = static_cast<double>(vocab) * std::exp(std::min((found.floor - best.front().z) * scale, 0.0));
    const size_t size = nucleus_size(mass, top_p * sum * kNarrow);
    if (nucleus_size(mass, top_p * (sum + rest)) != size || sum < top_p * (sum + rest)) return {};
    best.resize(size);
    return best;
}

const uint8_t* mask_of(const Question& question, int64_t row, int64_t vocab) {
    return question.mask == nullptr || !question.mask_per_row ? question.mask : question.mask + row * vocab;
}

}  // namespace

// Whether blocks are worth their while.
bool Reader::searches(int64_t count, int64_t k) const { return blocks != nullptr && k <= (count <= max_batch ? max_k : max_k_of_batches); }

bool Reader::searches(int64_t count, const SampleRule& rule) const {
    const int64_t first = first_of(rule);
    return (first > 0 || (rule.top_p >= 1 ? samples && every : min_eps <= kNucleusEps)) && searches(count, std::max<int64_t>(first, 1));
}

// What blocks do not answer.
std::vector<Answer> Reader::by_all(const double* rows, int64_t count, const Question& question) const {
    if (!every) return {};
    return codes != nullptr ? ask(*codes, rows, count, question) : ask(*executor, rows, count, question);
}

std::vector<Answer> Reader::topk(const double* rows, int64_t count, const Question& question) const {
    const bool ids_alone = std::isinf(question.eps);
    if (!(ids_alone || question.eps >= min_eps) || !searches(count, question.k)) return by_all(rows, count, question);
    const int64_t dim = executor->dim, vocab = executor->vocab;
    const Reach reach = ids_alone ? Reach{} : reach_for(question.eps, executor->link_a, vocab);
    const std::vector<SearchResult> found = search(*blocks, rows, count, question.k, question.mask, question.mask_per_row, question.threads, reach);
    std::vector<Answer> answers(count);
    std::vector<int64_t> left;
    for (int64_t q = 0; q < count; ++q) {
        if (ids_alone && found[q].done) answers[q] = best_of(*executor, found[q]);
        else if (ids_alone || !best_within(*executor, found[q], question.k, question.eps, dot_error(*executor, rows + q * dim), &answers[q]))
            left.push_back(q);
    }
    if (left.empty()) return answers;
    const auto some = static_cast<int64_t>(left.size());
    Scratch<double> theirs(some * dim);
    std::vector<uint8_t> masks;
    Question asked = question;
    for (int64_t i = 0; i < some; ++i) {
        std::copy_n(rows + left[i] * dim, dim, theirs.data() + i * dim);
        if (const uint8_t* mask = mask_of(question, left[i], vocab); question.mask_per_row) masks.insert(masks.end(), mask, mask + vocab);
    }
    if (question.mask_per_row) asked.mask = masks.data();
    std::vector<Answer> others = by_all(theirs.data(), some, asked);
    if (others.empty()) return {};
    if (ids_alone && question.mask == nullptr)
        for (const Answer& other : others)
            blocks->trial.passed(other.bytes - (codes != nullptr ? codes->bytes() : static_cast<double>(vocab) * executor->row_bytes()) / static_cast<double>(some));
    for (int64_t i = 0; i < some; ++i) {  // what was searched in vain is a part of what it took
        Answer& answer = answers[left[i]] = std::move(others[i]);
        answer.rows += found[left[i]].rows;
        answer.bytes += found[left[i]].bytes;
    }
    return answers;
}

// A search that reaches far enough finds the normaliser with the best class.
std::vector<Answer> Reader::lse(const double* rows, int64_t count, Question question) const {
    question.k = min_eps <= question.eps && !std::isinf(question.eps) && searches(count, 1) ? 1 : 0;
    return question.k > 0 ? topk(rows, count, question) : by_all(rows, count, question);
}

// By codes, else by a full scan.
std::vector<Answer> Reader::entropy(const double* rows, int64_t count, Question question) const {
    question.entropy = true;
    if (codes != nullptr) return ask(*codes, rows, count, question);
    std::vector<Answer> answers(count);
    std::vector<int64_t> all(count);
    std::iota(all.begin(), all.end(), 0);
    for (Answer& answer : answers) answer.dense = true;
    finish(*executor, rows, all, question, answers);
    return answers;
}

std::vector<Answer> Reader::sample(const double* rows, int64_t count, const std::vector<SampleRule>& rules, const Question& question,
                                   std::vector<Draw>* draws) const {
    const SampleRule& rule = rules.front();
    std::vector<Answer> answers(count);
    if (rules.size() == 1 && searches(count, rule)) {
        if (first_of(rule) == 0 && rule.top_p >= 1) return sample_by_blocks(*executor, *blocks, rows, count, rule, question, draws);
        if (first_of(rule) > 0 ? draw_of_best(rows, count, rule, question, &answers, draws) : draw_of_nucleus(rows, count, rule, question, &answers, draws))
            return answers;
    }
    if (!every) return {};
    std::vector<Answer> others = codes != nullptr ? headlong::sample(*codes, rows, count, rules, question, draws)
                                                  : headlong::sample(*executor, rows, count, rule, question, draws);
    for (int64_t q = 0; q < count; ++q) {  // and what the search read
        others[q].rows += answers[q].rows;
        others[q].bytes += answers[q].bytes;
    }
    return others;
}

// Draws under top_k or min_p, which need no normaliser: from all classes that the filters keep, and some more; false where blocks
// do not find them, with what the search took.
bool Reader::draw_of_best(const double* rows, int64_t count, const SampleRule& rule, const Question& question, std::vector<Answer>* answers,
                          std::vector<Draw>* draws) const {
    const Executor& e = *executor;
    draws->assign(count * rule.n, Draw{});
    const double beta = 1 / rule.temperature, floor = rule.min_p > 0 ? std::log(rule.min_p) : -kInf;
    for (int64_t wanted = first_of(rule); searches(count, wanted); wanted *= 4) {
        const int64_t most = std::min(wanted, e.vocab);
        const std::vector<SearchResult> found = search(*blocks, rows, count, most, question.mask, question.mask_per_row, question.threads);
        bool enough = true, done = true;
        for (int64_t q = 0; q < count; ++q) {
            Answer& answer = (*answers)[q];
            answer.rows += found[q].rows;
            answer.bytes += found[q].bytes;
            done = done && found[q].done;
            if (!done) continue;
            answer.best = scored_of(found[q].best, wanted);
            const bool all = rule.top_k > 0 || static_cast<int64_t>(answer.best.size()) < wanted;
            enough = enough && (all || e.linked(answer.best.back().z) * beta < e.linked(answer.best.front().z) * beta + floor);
        }
        if (!done) return false;
        if (!enough) continue;
        for (int64_t q = 0; q < count; ++q)
            draw_from(e, filtered(e, std::move((*answers)[q].best), rule), rule, q, draws->data() + q * rule.n);
        return true;
    }
    return false;
}

// Draws under top_p, where few classes have so much of the mass that the others do not move the nucleus.
bool Reader::draw_of_nucleus(const double* rows, int64_t count, const SampleRule& rule, const Question& question, std::vector<Answer>* answers,
                             std::vector<Draw>* draws) const {
    const Executor& e = *executor;
    draws->assign(count * rule.n, Draw{});
    SampleRule behind = rule;  // what comes after top_p
    behind.top_p = 1;
    const double scale = e.link_a / rule.temperature;
    const Reach reach{scale, std::log(static_cast<double>(e.vocab)) - std::log(std::expm1(min_eps))};
    for (int64_t q = 0; q < count; ++q) {
        const SearchResult found =
            std::move(search(*blocks, rows + q * e.dim, 1, 1, mask_of(question, q, e.vocab), false, question.threads, reach).front());
        (*answers)[q].rows += found.rows;
        (*answers)[q].bytes += found.bytes;
        const std::vector<Scored> nucleus = found.done ? nucleus_of(found, rule.top_p, scale, e.vocab) : std::vector<Scored>{};
        if (nucleus.empty()) return false;
        draw_from(e, filtered(e, nucleus, behind), behind, q, draws->data() + q * rule.n);
    }
    return true;
}

}  // namespace headlong
