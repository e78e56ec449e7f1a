#include "by_blocks/plain_questions.h"

#include <algorithm>
#include <cmath>

#include "by_blocks/answers.h"
#include "by_blocks/samples.h"
#include "executor/verbs.h"
#include "runtime/scratch.h"

namespace headlong {
namespace {

constexpr double kNarrow = 1 - 0x1p-30;  // of a sum: more than its rounding, and that of most logits

std::vector<Scored> scored_of(const std::vector<ScoredClass>& found, size_t most) {
    std::vector<Scored> some;
    for (size_t i = 0; i < std::min(most, found.size()); ++i) some.push_back({found[i].id, found[i].z});
    return some;
}

void draw_from(const Executor& e, const std::vector<Scored>& kept, const SampleRule& rule, int64_t row, Draw* draws) {
    for (int i = 0; i < rule.n; ++i) draws[i] = pick(e, kept, rule, row, i);
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

// What was answered after a search that found nothing, which is a part of what it took.
Answer behind(Answer answer, const SearchResult& search) {
    answer.rows += search.rows;
    answer.bytes += search.bytes;
    return answer;
}

}  // namespace

// Whether blocks are worth their while.
bool Reader::searches(int64_t count, int64_t k) const {
    return blocks != nullptr && k <= (count <= blocks_batch ? blocks_most : blocks_together);
}

// What blocks do not answer.
std::vector<Answer> Reader::by_all(const double* rows, int64_t count, const Question& question) const {
    if (codes == nullptr) return ask(*executor, rows, count, question);
    Question asked = question;
    asked.delta = codes_delta;
    return ask(*codes, rows, count, asked);
}

std::vector<Answer> Reader::topk(const double* rows, int64_t count, const Question& question) const {
    const bool ids_alone = std::isinf(question.eps);
    if (!(ids_alone || question.eps >= least) || !searches(count, question.k)) return every ? by_all(rows, count, question) : std::vector<Answer>{};
    const int64_t dim = executor->dim, vocab = executor->vocab;
    const Reach reach = ids_alone ? Reach{} : reach_for(question.eps, affine.first, vocab);
    const std::vector<SearchResult> found = search(*blocks, rows, count, question.k, nullptr, false, question.threads, reach);
    std::vector<Answer> answers(count);
    std::vector<int64_t> left;
    for (int64_t q = 0; q < count; ++q) {
        if (ids_alone && found[q].done) answers[q] = answer_of(found[q], affine.first, affine.second);
        else if (ids_alone || !answer_within(found[q], affine.first, affine.second, vocab, question.k, question.eps,
                                             dot_error(*executor, rows + q * dim), &answers[q]))
            left.push_back(q);
    }
    if (left.empty()) return answers;
    if (!every) return {};
    Scratch<double> some(left.size() * dim);
    for (size_t i = 0; i < left.size(); ++i) std::copy_n(rows + left[i] * dim, dim, some.data() + i * dim);
    std::vector<Answer> others = by_all(some.data(), static_cast<int64_t>(left.size()), question);
    if (ids_alone)
        for (const Answer& other : others)
            blocks->trial.passed(other.bytes - (codes != nullptr ? codes->bytes() : static_cast<double>(executor->vocab) * executor->row_bytes()) / static_cast<double>(left.size()));
    for (size_t i = 0; i < left.size(); ++i) answers[left[i]] = behind(std::move(others[i]), found[left[i]]);
    return answers;
}

// A search that reaches far enough finds the normaliser with the best class.
std::vector<Answer> Reader::lse(const double* rows, int64_t count, Question question) const {
    if (least <= question.eps && !std::isinf(question.eps) && searches(count, 1)) {
        question.k = 1;
        return topk(rows, count, question);
    }
    return every ? by_all(rows, count, question) : std::vector<Answer>{};
}

// Whether draws from all classes go by blocks.
bool Reader::draws_plainly(int64_t count, const SampleRule& rule) const {
    const bool plain = rule.top_k == 0 && rule.top_p >= 1 && !(rule.min_p > 0);
    return samples && plain && searches(count, 1);
}

std::vector<Answer> Reader::sample(const double* rows, int64_t count, const SampleRule& rule, const Question& question,
                                   std::vector<Draw>* draws) const {
    std::vector<Answer> answers(count);
    if (draw_of_best(rows, count, rule, question.threads, &answers, draws)) return answers;
    if (draw_of_nucleus(rows, count, rule, question.threads, &answers, draws)) return answers;
    if (every && draws_plainly(count, rule))
        return sample_by_blocks(*executor, *blocks, affine, rows, count, rule, question, draws);
    if (!every) return {};
    Question asked = question;
    if (codes != nullptr) asked.delta = codes_delta;
    std::vector<Answer> others = codes != nullptr ? headlong::sample(*codes, rows, count, {rule}, asked, draws)
                                                  : headlong::sample(*executor, rows, count, rule, question, draws);
    for (int64_t q = 0; q < count; ++q) {  // and what the search read
        others[q].rows += answers[q].rows;
        others[q].bytes += answers[q].bytes;
    }
    return others;
}

// Draws under top_k or min_p, which need no normaliser: from all classes that the filters keep, and some more; false where blocks
// do not find them, with what the search took.
bool Reader::draw_of_best(const double* rows, int64_t count, const SampleRule& rule, int threads, std::vector<Answer>* answers,
                          std::vector<Draw>* draws) const {
    const Executor& e = *executor;
    int64_t wanted = rule.top_k > 0 ? rule.top_k : rule.min_p > 0 && rule.top_p >= 1 ? first : 0;
    if (wanted == 0) return false;
    draws->assign(count * rule.n, Draw{});
    const double beta = 1 / rule.temperature, floor = rule.min_p > 0 ? std::log(rule.min_p) : -kInf;
    for (; searches(count, wanted); wanted *= 4) {
        const int64_t most = std::min(wanted, e.vocab);
        const std::vector<SearchResult> found = search(*blocks, rows, count, most, nullptr, false, threads);
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
bool Reader::draw_of_nucleus(const double* rows, int64_t count, const SampleRule& rule, int threads, std::vector<Answer>* answers,
                             std::vector<Draw>* draws) const {
    if (!(least <= edge) || rule.top_p >= 1 || rule.top_k > 0 || !searches(count, 1)) return false;
    const Executor& e = *executor;
    draws->assign(count * rule.n, Draw{});
    SampleRule behind = rule;  // what comes after top_p
    behind.top_p = 1;
    const double scale = affine.first / rule.temperature;
    const Reach reach{scale, std::log(static_cast<double>(e.vocab)) - std::log(std::expm1(least))};
    for (int64_t q = 0; q < count; ++q) {
        const SearchResult found = std::move(search(*blocks, rows + q * e.dim, 1, 1, nullptr, false, threads, reach).front());
        (*answers)[q].rows += found.rows;
        (*answers)[q].bytes += found.bytes;
        const std::vector<Scored> nucleus = found.done ? nucleus_of(found, rule.top_p, scale, e.vocab) : std::vector<Scored>{};
        if (nucleus.empty()) return false;
        draw_from(e, filtered(e, nucleus, behind), behind, q, draws->data() + q * rule.n);
    }
    return true;
}

}  // namespace headlong
