#include "reader/reader.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "executor/verbs.h"
#include "reader/samples.h"
#include "runtime/scratch.h"

namespace headlong {
namespace {

constexpr int64_t kFirstOfFilters = 128, kMoreOfFilters = 8;  // classes that filters are looked for in, and how many times more where they go on
constexpr double kNearEnough = 0.01;  // of a normaliser: about that share of draws falls between both ends of a nucleus

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
    std::vector<Answer> answers(count);
    const int each = rules.front().n;
    draws->assign(count * each, Draw{});
    std::vector<SampleRule> own;
    for (int64_t q = 0; q < count; ++q) {
        own.push_back(rules[rules.size() > 1 ? q : 0]);
        if (rules.size() == 1) own.back().row0 += q;
        if (own.back().top_k >= executor->vocab) own.back().top_k = 0;  // to keep all is no filter, and costs none
    }
    if (count > 0 && executor->preview.budget > 0) return headlong::sample(*executor, rows, count, own, question, draws);  // as published
    std::vector<int64_t> left(count);
    std::iota(left.begin(), left.end(), 0);
    while (!left.empty()) {  // rows at one temperature, with filters or without, together
        const SampleRule& first = own[left.front()];
        const auto alike = [&](int64_t q) { return own[q].temperature == first.temperature && own[q].keeps_all() == first.keeps_all(); };
        const auto others = std::stable_partition(left.begin(), left.end(), alike);
        const std::vector<int64_t> some(left.begin(), others);
        left.erase(left.begin(), others);
        Question asked = question;
        asked.beta = 1 / first.temperature;
        const bool done = first.keeps_all() ? draw_from_all(rows, some, own, asked, draws, answers) : draw_from_best(rows, some, own, asked, draws, answers);
        if (!done) return {};
    }
    if (!says_proved(question))
        for (Draw& one : *draws) one.proved = false;
    return answers;
}

// The largest keys of all classes and, where it is asked for, the normaliser, in one scan; all rows where codes leave too many open.
bool Reader::draw_of_codes(const SomeRows& part, const std::vector<int64_t>& some, const std::vector<SampleRule>& rules, std::vector<Draw>* draws,
                           std::vector<Answer>& answers) const {
    Question asked = part.question;
    asked.k = 0, asked.rules = rules.data();
    std::vector<Answer> found = ask(*codes, part.hidden.data(), static_cast<int64_t>(some.size()), asked);
    const int each = rules[0].n;
    std::vector<int64_t> open;
    std::vector<SampleRule> own;
    for (size_t i = 0; i < some.size(); ++i) {
        Answer& answer = answers[some[i]] = std::move(found[i]);
        answer.kept = 0;
        if (answer.draws.empty()) open.push_back(static_cast<int64_t>(i)), own.push_back(rules[i]);
        else std::copy_n(answer.draws.begin(), each, draws->begin() + some[i] * each);
    }
    if (open.empty()) return true;
    Question alone = part.question;
    alone.eps = kInf;
    const SomeRows others(part.hidden.data(), open, alone, executor->dim, executor->vocab);
    std::vector<Draw> drawn;
    const std::vector<Answer> fully = headlong::sample(*executor, others.hidden.data(), static_cast<int64_t>(open.size()), own, others.question, &drawn);
    for (size_t i = 0; i < open.size(); ++i) {
        Answer& answer = answers[some[open[i]]];
        answer.rows += fully[i].rows, answer.bytes += fully[i].bytes, answer.dense = true;
        std::copy_n(drawn.begin() + static_cast<int64_t>(i) * each, each, draws->begin() + some[open[i]] * each);
    }
    return true;
}

// The largest keys of all classes; the normaliser is a question of its own where no codes are.
bool Reader::draw_from_all(const double* rows, const std::vector<int64_t>& some, const std::vector<SampleRule>& rules, const Question& question,
                           std::vector<Draw>* draws, std::vector<Answer>& answers) const {
    const SomeRows part(rows, some, question, executor->dim, executor->vocab);
    const auto n = static_cast<int64_t>(some.size());
    std::vector<SampleRule> own;
    for (int64_t row : some) own.push_back(rules[row]);
    Question asked = part.question;
    asked.eps = kInf;
    std::vector<Draw> drawn;
    std::vector<Answer> found;
    const auto follow = [&](int64_t q) { return own[q].seed == own[0].seed && own[q].row0 == own[0].row0 + static_cast<uint64_t>(q); };
    bool one_rule = true;
    for (int64_t q = 0; q < n; ++q) one_rule &= follow(q);
    if (one_rule && samples && every && searches(n, 1)) found = sample_by_blocks(*executor, *blocks, part.hidden.data(), n, own[0], asked, &drawn);
    else if (!every) return false;
    else if (codes != nullptr) return draw_of_codes(part, some, own, draws, answers);
    else found = headlong::sample(*executor, part.hidden.data(), n, own, asked, &drawn);
    if (std::isfinite(question.eps)) {
        std::vector<Answer> norms = lse(part.hidden.data(), n, part.question);
        for (int64_t q = 0; q < n; ++q) {
            found[q].lse = norms[q].lse, found[q].error = norms[q].error, found[q].kept = 0;
            found[q].rows += norms[q].rows, found[q].bytes += norms[q].bytes, found[q].dense |= norms[q].dense;
        }
    }
    const int each = own[0].n;
    for (int64_t q = 0; q < n; ++q) {
        std::copy_n(drawn.begin() + q * each, each, draws->begin() + some[q] * each);
        answers[some[q]] = std::move(found[q]);
    }
    return true;
}

// The same from a scan of the rows themselves, whose normalisers are far closer; returns the rows that stay undecided.
std::vector<int64_t> Reader::draw_from_rows(const double* rows, const std::vector<int64_t>& some, int64_t k, const std::vector<SampleRule>& rules, const Question& question,
                                            std::vector<Draw>* draws, std::vector<Answer>& answers) const {
    const SomeRows part(rows, some, question, executor->dim, executor->vocab);
    Question asked = part.question;
    asked.k = k;
    asked.eps = std::min(1.0, question.eps);  // it says itself how near it is
    std::vector<Answer> found = ask(*executor, part.hidden.data(), static_cast<int64_t>(some.size()), asked);
    std::vector<int64_t> left;
    for (size_t i = 0; i < some.size(); ++i) {
        Answer& answer = answers[some[i]];
        found[i].rows += answer.rows, found[i].bytes += answer.bytes;
        answer = std::move(found[i]);
        if (draw_among(*executor, answer, asked, rules[some[i]], question.eps, &(*draws)[some[i] * rules[some[i]].n]) != Verdict::drawn) left.push_back(some[i]);
    }
    return left;
}

// Filters go by the best classes and the normaliser, which one scan finds: more classes where those do not decide, every logit where a draw
// falls between both ends of a nucleus.
bool Reader::draw_from_best(const double* rows, const std::vector<int64_t>& some, const std::vector<SampleRule>& rules, const Question& question,
                            std::vector<Draw>* draws, std::vector<Answer>& answers) const {
    std::vector<int64_t> wanted(some.size()), fully;
    for (size_t i = 0; i < some.size(); ++i) wanted[i] = rules[some[i]].top_k > 0 ? rules[some[i]].top_k : kFirstOfFilters;
    std::vector<uint8_t> done(some.size()), weighed(some.size());  // weighed: a normaliser is asked for
    for (size_t i = 0; i < some.size(); ++i) weighed[i] = std::isfinite(question.eps) || codes == nullptr || !rules[some[i]].goes_by_mass();
    while (true) {
        int64_t k = executor->vocab + 1;
        for (size_t i = 0; i < some.size(); ++i)
            if (!done[i]) k = std::min(k, std::min(wanted[i], executor->vocab));
        if (k > executor->vocab) break;
        std::vector<int64_t> now, place;
        const size_t first = static_cast<size_t>(std::find_if(some.begin(), some.end(), [&](const int64_t& row) {
            const auto i = static_cast<size_t>(&row - some.data());
            return !done[i] && std::min(wanted[i], executor->vocab) == k;
        }) - some.begin());
        bool weighs = std::isfinite(question.eps);
        for (size_t i = first; i < some.size(); ++i) {
            const bool alike = weighed[i] == weighed[first] && rules[some[i]].goes_by_mass() == rules[some[first]].goes_by_mass() &&
                               (rules[some[i]].top_p < 1) == (rules[some[first]].top_p < 1) && (rules[some[i]].top_k > 0) == (rules[some[first]].top_k > 0);
            if (done[i] || std::min(wanted[i], executor->vocab) != k || !alike) continue;  // what is asked of a row is its own affair
            if (4 * k > executor->vocab && every) {  // codes would read all rows
                fully.push_back(some[i]), done[i] = 1;
                continue;
            }
            now.push_back(some[i]), place.push_back(static_cast<int64_t>(i));
            weighs |= weighed[i] && rules[some[i]].top_k == 0 && rules[some[i]].top_p < 1;
        }
        if (now.empty()) continue;
        const SomeRows part(rows, now, question, executor->dim, executor->vocab);
        Question asked = part.question;
        asked.k = k;
        asked.eps = weighs ? std::min(question.eps, kNearEnough) : kInf;
        std::vector<SampleRule> own;  // whose nuclei may go on beyond the best: the largest keys of all classes may be among these
        for (int64_t row : now) own.push_back(rules[row]);
        const bool keys = k == kFirstOfFilters && codes != nullptr && (std::isfinite(question.eps) || !weighed[first]) && std::any_of(own.begin(), own.end(), [](const SampleRule& rule) { return rule.goes_by_mass(); });
        if (keys) asked.rules = own.data();
        const auto n = static_cast<int64_t>(now.size());
        std::vector<Answer> found = keys ? lse(part.hidden.data(), n, asked) : find_best(part.hidden.data(), n, asked);
        if (found.empty()) return false;
        for (size_t i = 0; i < now.size(); ++i) {
            Answer& answer = answers[now[i]];
            found[i].rows += answer.rows, found[i].bytes += answer.bytes, found[i].dense |= answer.dense;
            if (!keys) found[i].draws = std::move(answer.draws);
            answer = std::move(found[i]);
            const Verdict verdict = draw_among(*executor, answer, asked, rules[now[i]], question.eps, &(*draws)[now[i] * rules[now[i]].n]);
            if (verdict == Verdict::weigh && !weighed[place[i]]) {
                weighed[place[i]] = 1;
                continue;
            }
            if (verdict == Verdict::more && wanted[place[i]] < executor->vocab) {
                wanted[place[i]] *= kMoreOfFilters;
                continue;
            }
            if (verdict != Verdict::drawn) {
                if (!every) return false;
                fully.push_back(now[i]);
            }
            done[place[i]] = 1;
        }
    }
    std::vector<int64_t> left;
    while (codes != nullptr && !fully.empty()) {  // those that had as many best classes together: a normaliser goes by these
        const auto k = static_cast<int64_t>(answers[fully.front()].best.size());
        const auto others = std::stable_partition(fully.begin(), fully.end(), [&](int64_t row) { return static_cast<int64_t>(answers[row].best.size()) == k; });
        std::vector<int64_t> some_of(fully.begin(), others);
        fully.erase(fully.begin(), others);
        if (k > 0) some_of = draw_from_rows(rows, some_of, k, rules, question, draws, answers);
        left.insert(left.end(), some_of.begin(), some_of.end());
    }
    fully.insert(fully.end(), left.begin(), left.end());
    if (!fully.empty()) finish_samples(*executor, rows, fully, question, rules, *draws, answers);
    return true;
}

}  // namespace headlong
