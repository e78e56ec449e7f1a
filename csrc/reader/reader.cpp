#include "reader/reader.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "executor/verbs.h"
#include "reader/few_classes.h"
#include "reader/samples.h"
#include "runtime/scratch.h"

namespace headlong {
namespace {

constexpr int64_t kFirstOfFilters = 64, kMoreOfFilters = 8;  // classes that filters are looked for in, and how many times more where they go on
constexpr double kNear = 0.01;  // of a normaliser: about that share of draws falls between both ends of a nucleus

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

template <typename Many>
std::vector<Answer> Reader::by_classes_left(const double* rows, int64_t count, const Question& question, const Many& many) const {
    const FewClasses few(question, every ? count : 0, executor->vocab);
    if (few.rows.empty()) return many(rows, count, question);
    std::vector<Answer> answers(count);
    few.answer(*executor, rows, question, nullptr, nullptr, answers);
    if (few.others.empty()) return answers;
    const SomeRows part(rows, few.others, question, executor->dim, executor->vocab);
    SomeRows::put_back(many(part.hidden.data(), static_cast<int64_t>(few.others.size()), part.question), few.others, answers);
    return answers;
}

std::vector<Answer> Reader::lse(const double* rows, int64_t count, const Question& question) const {
    return by_classes_left(rows, count, question, [this](auto... part) { return weigh(part...); });
}

std::vector<Answer> Reader::weigh(const double* rows, int64_t count, const Question& question) const {
    if (!every) return {};
    return codes != nullptr ? ask(*codes, rows, count, question) : ask(*executor, rows, count, question);
}

std::vector<Answer> Reader::topk(const double* rows, int64_t count, const Question& question) const {
    return by_classes_left(rows, count, question, [this](const double* some, int64_t n, const Question& asked) {
        std::vector<Answer> answers = find_best(some, n, asked);
        if (!says_proved(asked))
            for (Answer& answer : answers) answer.proved = false;
        return answers;
    });
}

std::vector<Answer> Reader::find_best(const double* rows, int64_t count, const Question& question) const {
    if (!std::isinf(question.eps) || !searches(count, question.k)) return weigh(rows, count, question);
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
    std::vector<Answer> others = weigh(some.hidden.data(), many, some.question);
    if (others.empty()) return {};
    Trial& trial = blocks->trial(question.mask != nullptr);
    for (const Answer& other : others)
        trial.passed(other.bytes - (codes != nullptr ? codes->bytes() : static_cast<double>(vocab) * executor->row_bytes()) / static_cast<double>(many));
    SomeRows::put_back(std::move(others), left, answers);
    return answers;
}

// By codes, else by a full scan.
std::vector<Answer> Reader::entropy(const double* rows, int64_t count, Question question) const {
    question.functional = &kEntropy;
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
        own.back().last &= !own.back().keeps_all();
    }
    const FewClasses few(question, count, executor->vocab);
    if (few.some_empty) return {};  // there is nothing to draw
    few.answer(*executor, rows, question, own.data(), draws->data(), answers);
    std::vector<int64_t> left = few.others;
    if (!left.empty() && executor->preview.budget > 0) {  // as published
        draw_from_all(rows, left, own, question, draws, answers);
        return answers;
    }
    while (!left.empty()) {  // rows whose masses are at one temperature, with filters or without, together
        const SampleRule& first = own[left.front()];
        const auto alike = [&](int64_t q) { return own[q].beta() == first.beta() && own[q].keeps_all() == first.keeps_all(); };
        const auto others = std::stable_partition(left.begin(), left.end(), alike);
        const std::vector<int64_t> some(left.begin(), others);
        left.erase(left.begin(), others);
        Question asked = question;
        asked.beta = first.beta();
        const bool done = first.keeps_all() ? draw_from_all(rows, some, own, asked, draws, answers) : draw_from_best(rows, some, own, asked, draws, answers);
        if (!done) return {};
    }
    if (!says_proved(question))
        for (int64_t q : few.others) std::for_each_n(draws->begin() + q * each, each, [](Draw& one) { one.proved = false; });
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
    if (executor->preview.budget > 0) found = headlong::sample(*executor, part.hidden.data(), n, own, part.question, &drawn);
    else if (one_rule && samples && every && searches(n, 1)) found = sample_by_blocks(*executor, *blocks, part.hidden.data(), n, own[0], asked, &drawn);
    else if (!every) return false;
    else if (codes != nullptr) return draw_of_codes(part, some, own, draws, answers);
    else found = headlong::sample(*executor, part.hidden.data(), n, own, asked, &drawn);
    if (std::isfinite(question.eps) && executor->preview.budget == 0) {
        std::vector<Answer> norms = weigh(part.hidden.data(), n, part.question);
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

// The same by the normalisers of a scan of the rows themselves, which are far closer; returns the rows that stay undecided.
std::vector<int64_t> Reader::draw_from_rows(const double* rows, const std::vector<int64_t>& some, const std::vector<uint8_t>& whole, const std::vector<SampleRule>& rules,
                                            const Question& question, std::vector<Draw>* draws, std::vector<Answer>& answers) const {
    const SomeRows part(rows, some, question, executor->dim, executor->vocab);
    Question asked = part.question;
    asked.k = kFirstOfFilters;  // a normaliser is closer with these
    asked.eps = std::min(1.0, question.eps);  // it says itself how near it is
    const std::vector<Answer> found = ask(*executor, part.hidden.data(), static_cast<int64_t>(some.size()), asked);
    std::vector<int64_t> left;
    for (size_t i = 0; i < some.size(); ++i) {
        Answer& answer = answers[some[i]];
        answer.lse = found[i].lse, answer.error = found[i].error, answer.dense |= found[i].dense;
        answer.rows += found[i].rows, answer.bytes += found[i].bytes;
        if (draw_among(*executor, answer, whole[i] != 0, rules[some[i]], question.eps, &(*draws)[some[i] * rules[some[i]].n]) != Verdict::drawn) left.push_back(some[i]);
    }
    return left;
}

// Filters go by the best classes and the normaliser; draws by mass alone by the largest keys of all classes, too, which one scan finds, and
// which are drawn again until they are in their nucleus. Where filters keep more than the best, more are asked for, at last every logit.
bool Reader::draw_from_best(const double* rows, const std::vector<int64_t>& some, const std::vector<SampleRule>& rules, const Question& question,
                            std::vector<Draw>* draws, std::vector<Answer>& answers) const {
    struct Asked {  // of a row next
        int64_t k;
        double eps;  // of the normaliser; infinite: it is not asked for
        bool keys;
        int round;  // how many questions came before
        bool operator==(const Asked& other) const { return k == other.k && eps == other.eps && keys == other.keys && round == other.round; }
    };
    const int64_t vocab = executor->vocab;
    std::vector<Asked> next;
    for (int64_t row : some) {
        const SampleRule& rule = rules[row];
        const bool keys = codes != nullptr && rule.goes_by_mass();
        const bool sums = std::isfinite(question.eps) || (rule.top_k == 0 && rule.top_p < 1 && !keys);
        next.push_back({std::min(vocab, rule.top_k > 0 ? rule.top_k : kFirstOfFilters), sums ? std::min(question.eps, kNear) : kInf, keys, 0});
    }
    std::vector<uint8_t> done(some.size()), whole(some.size());
    std::vector<size_t> open;  // whom every row of the layer is to decide
    while (true) {
        const auto first = static_cast<size_t>(std::find(done.begin(), done.end(), 0) - done.begin());
        if (first == some.size()) break;
        const Asked now = next[first];
        std::vector<int64_t> which;
        std::vector<size_t> place;
        for (size_t i = first; i < some.size(); ++i)
            if (!done[i] && next[i] == now) which.push_back(some[i]), place.push_back(i);  // what is asked of a row is its own affair
        if (4 * now.k > vocab && every) {  // codes would read all rows
            for (size_t i : place) done[i] = 1, open.push_back(i);
            continue;
        }
        const SomeRows part(rows, which, question, executor->dim, vocab);
        const auto n = static_cast<int64_t>(which.size());
        Question asked = part.question;
        asked.k = now.k;
        asked.eps = now.eps;
        asked.delta = std::ldexp(question.delta, -1 - now.round);  // together they fail as seldom as one question
        std::vector<SampleRule> own;
        for (int64_t row : which) own.push_back(rules[row]);
        if (now.keys) asked.rules = own.data();
        std::vector<Answer> found = now.keys ? weigh(part.hidden.data(), n, asked) : find_best(part.hidden.data(), n, asked);
        if (found.empty()) return false;
        for (size_t i = 0; i < which.size(); ++i) {
            Answer& answer = answers[which[i]];
            const SampleRule& rule = own[i];
            found[i].rows += answer.rows, found[i].bytes += answer.bytes, found[i].dense |= answer.dense;
            answer = std::move(found[i]);
            whole[place[i]] = static_cast<int64_t>(answer.best.size()) < now.k;
            const double error = answer.error;  // of the normaliser: what is kept may be less certain
            const Verdict verdict = draw_among(*executor, answer, whole[place[i]] != 0, rule, question.eps, &(*draws)[which[i] * rule.n]);
            if (verdict != Verdict::drawn) answer.error = error;
            if (verdict == Verdict::more && (answer.inside || !now.keys) && now.k < vocab) {
                next[place[i]] = {std::min(vocab, now.k * kMoreOfFilters), now.eps, now.keys, now.round + 1};
                continue;
            }
            if (verdict != Verdict::drawn && !every) return false;
            done[place[i]] = 1;
            if (verdict != Verdict::drawn) open.push_back(place[i]);
        }
    }
    std::vector<int64_t> fully, near;
    std::vector<uint8_t> all;
    for (size_t i : open) {
        const bool closer = codes != nullptr && rules[some[i]].top_p < 1 && !answers[some[i]].best.empty() && !draws_beyond(answers[some[i]]);
        (closer ? near : fully).push_back(some[i]);
        if (closer) all.push_back(whole[i]);
    }
    if (!near.empty()) near = draw_from_rows(rows, near, all, rules, question, draws, answers);
    fully.insert(fully.end(), near.begin(), near.end());
    if (!fully.empty()) finish_samples(*executor, rows, fully, question, rules, *draws, answers);
    return true;
}

}  // namespace headlong
