#include "reader/reader.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "executor/verbs.h"
#include "reader/samples.h"
#include "runtime/scratch.h"

namespace headlong {
namespace {

// The normaliser is that of the scored classes alone: a lower bound, and its error is infinite.
Answer best_of(const Executor& e, const SearchResult& found) {
    Answer answer;
    answer.best = found.best;
    double sum = 0;
    for (const Scored& one : answer.best)
        if (std::isfinite(one.z)) sum += std::exp(e.linked(one.z) - e.linked(answer.best.front().z));
    answer.lse = sum > 0 ? e.linked(answer.best.front().z) + std::log(sum) : -kInf;
    answer.proved = found.done;
    answer.rows = found.rows;
    answer.bytes = found.bytes;
    return answer;
}

}  // namespace

// Whether blocks are worth their while.
bool Reader::searches(int64_t count, int64_t k) const { return blocks != nullptr && k <= (count <= max_batch ? max_k : max_k_of_batches); }

bool Reader::searches(int64_t count, const SampleRule& rule) const {
    if (rule.top_k > 0) return searches(count, rule.top_k);
    return rule.top_p >= 1 && !(rule.min_p > 0) && samples && every && searches(count, 1);
}

std::vector<Answer> Reader::lse(const double* rows, int64_t count, const Question& question) const {
    if (!every) return {};
    return codes != nullptr ? ask(*codes, rows, count, question) : ask(*executor, rows, count, question);
}

std::vector<Answer> Reader::topk(const double* rows, int64_t count, const Question& question) const {
    std::vector<Answer> answers = find_best(rows, count, question);
    if (!says_proved(question))
        for (Answer& answer : answers) answer.proved = false;
    return answers;
}

std::vector<Answer> Reader::find_best(const double* rows, int64_t count, const Question& question) const {
    if (!std::isinf(question.eps) || !searches(count, question.k)) return lse(rows, count, question);
    const int64_t dim = executor->dim, vocab = executor->vocab;
    const std::vector<SearchResult> found = search(*blocks, rows, count, question.k, question.mask, question.mask_per_row, question.threads);
    std::vector<Answer> answers(count);
    std::vector<int64_t> left;
    for (int64_t q = 0; q < count; ++q) {
        if (found[q].done) answers[q] = best_of(*executor, found[q]);
        else left.push_back(q);
    }
    if (left.empty()) return answers;
    for (int64_t q : left) answers[q].rows = found[q].rows, answers[q].bytes = found[q].bytes;
    const SomeRows some(rows, left, question, dim, vocab);
    const auto many = static_cast<int64_t>(left.size());
    std::vector<Answer> others = lse(some.hidden.data(), many, some.question);
    if (others.empty()) return {};
    if (question.mask == nullptr)
        for (const Answer& other : others)
            blocks->trial.passed(other.bytes - (codes != nullptr ? codes->bytes() : static_cast<double>(vocab) * executor->row_bytes()) / static_cast<double>(many));
    SomeRows::put_back(std::move(others), left, answers);
    return answers;
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
    std::vector<Answer> answers = draw(rows, count, rules, question, draws);
    if (!says_proved(question))
        for (Draw& one : *draws) one.proved = false;
    return answers;
}

std::vector<Answer> Reader::draw(const double* rows, int64_t count, const std::vector<SampleRule>& rules, const Question& question,
                                 std::vector<Draw>* draws) const {
    const SampleRule& rule = rules.front();
    std::vector<Answer> answers(count);
    if (rules.size() == 1 && searches(count, rule)) {
        if (rule.top_k == 0) return sample_by_blocks(*executor, *blocks, rows, count, rule, question, draws);
        if (draw_of_best(rows, count, rule, question, &answers, draws)) return answers;
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

// Draws under top_k, which need no normaliser; false where blocks do not find its classes, with what the search took.
bool Reader::draw_of_best(const double* rows, int64_t count, const SampleRule& rule, const Question& question, std::vector<Answer>* answers,
                          std::vector<Draw>* draws) const {
    const int64_t k = std::min(rule.top_k, executor->vocab);
    draws->assign(count * rule.n, Draw{});
    const std::vector<SearchResult> found = search(*blocks, rows, count, k, question.mask, question.mask_per_row, question.threads);
    for (int64_t q = 0; q < count; ++q) {
        (*answers)[q].rows = found[q].rows;
        (*answers)[q].bytes = found[q].bytes;
    }
    if (!std::all_of(found.begin(), found.end(), [](const SearchResult& one) { return one.done; })) return false;
    for (int64_t q = 0; q < count; ++q) {
        const std::vector<Scored> kept = filtered(*executor, found[q].best, rule);
        for (int i = 0; i < rule.n; ++i) (*draws)[q * rule.n + i] = pick(*executor, kept, rule, q, i);
    }
    return true;
}

}  // namespace headlong
