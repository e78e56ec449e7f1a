// Sampling one query: every class has a Gumbel of its own, fixed by (seed, row, class), and the argmax of
// link(z) / T + gumbel is an exact sample. The classes whose keys may be the best are scored, their worst key is the threshold,
// and what can still reach it is scored.
// top_k, top_p and min_p are in sampling/filters.cpp.
#include <algorithm>
#include <numeric>

#include "executor/verbs.h"

namespace headlong {
namespace {

// What a look found of one of its queries.
Estimates estimates_of(const Executor& e, Look& look, int q, const Question& question, int threads, Answer& answer) {
    Estimates all;
    all.hidden = &look.hidden[q * e.dim], all.row = look.rows[q], all.shift = look.masses[q].shift, all.given = by_budget(e, look);
    all.may_bet = look.source == &e.preview && !all.given;
    if (all.given) {
        Interval lse{0, kInf};
        all.scored = spend_budget(e, look, q, question, threads, lse);
        answer.rows += static_cast<int64_t>(all.scored.size());
        answer.bytes += static_cast<double>(all.scored.size()) * e.row_bytes();
        all.rad.resize(e.padded);
        std::fill_n(all.rad.data(), e.padded, 0.f);
    } else {
        all.rad = look.rad.empty() ? radii(e, look, q, threads) : std::move(look.rad);
    }
    all.est.resize(e.padded);
    std::copy_n(look.est.data() + q * e.padded, e.padded, all.est.data());
    return all;
}

}  // namespace

// What is asked of the estimates: ids that the filters start from.
Question question_of(const SampleRule& rule, const Question& question, int64_t vocab) {
    Question asked = question;
    asked.beta = 1 / rule.temperature;
    asked.keep = true;
    asked.eps = kInf;  // no sample asks for a normaliser
    const bool by_mass = rule.top_p < 1 || rule.min_p > 0;
    asked.k = rule.top_k > 0 ? std::min(rule.top_k, vocab) : by_mass ? 1 : 0;
    return asked;
}

std::vector<Answer> sample(const Executor& e, const double* hidden, int64_t count, const SampleRule& rule,
                                     const Question& question, bool dense_only, std::vector<Draw>* draws) {
    draws->assign(count * rule.n, Draw{});
    std::vector<Answer> answers(count);
    std::vector<int64_t> rows(count);
    std::iota(rows.begin(), rows.end(), 0);
    const Question asked = question_of(rule, question, e.vocab);
    over_groups(
        e, hidden, rows, asked, dense_only,
        [&](Look& look, int q, int threads, Answer& answer) {
            Estimates all = estimates_of(e, look, q, asked, threads, answer);
            return resolve_sample(e, all, asked, rule, threads, draws->data() + all.row * rule.n, answer);
        },
        [&](const std::vector<int64_t>& left) { finish_samples(e, hidden, left, asked, rule, *draws, answers); },
        answers);
    if (e.budget > 0 && e.has_preview && !dense_only)
        for (Draw& draw : *draws) draw.proved = false;
    return answers;
}

Status resolve_sample(const Executor& e, Estimates& all, const Question& question, const SampleRule& rule, int threads, Draw* draws, Answer& answer) {
    if (rule.top_k == 0 && (rule.top_p < 1 || rule.min_p > 0)) return draw_filtered(e, all, question, rule, threads, draws, answer);
    if (rule.top_k > 0) {
        std::vector<Scored> best;
        if (!find_best(e, all, question.k, threads, best, answer)) return Status::finish_densely;
        const std::vector<Scored> kept = filtered(e, std::move(best), rule);
        for (int i = 0; i < rule.n; ++i) draws[i] = pick(e, kept, rule, all.row, i);
        return Status::done;
    }
    for (int i = 0; i < rule.n; ++i) {
        std::vector<Keyed> first;
        Keys keys;
        keys.draw = static_cast<uint32_t>(i);
        if (!best_keys(e, all, rule, 1, threads, keys, first, answer)) return Status::finish_densely;
        if (!first.empty()) draws[i] = {first[0].id, first[0].z, first[0].key, true};
    }
    return Status::done;
}

// Scores rows; they leave the estimates.
void score_known(const Executor& e, Estimates& all, std::vector<Scored>& rows, int threads, Answer& answer) {
    if (all.given) {
        for (Scored& s : rows) s.z = all.est[s.id];
    } else {
        score(e, all.hidden, rows, threads);
        answer.rows += static_cast<int64_t>(rows.size());
        answer.bytes += static_cast<double>(rows.size()) * e.row_bytes();
    }
    for (const Scored& s : rows) {
        all.est[s.id] = -std::numeric_limits<float>::infinity();
        all.rad[s.id] = 0;
    }
    all.scored.insert(all.scored.end(), rows.begin(), rows.end());
}

}  // namespace headlong
