// The normaliser from as many rows as queries taught to be enough. Middles b and gaps u are those of normaliser/gaps.cpp, the gaps by what
// is typical of a radius; the widest are scored, and with the others' r = sum u / (aim * sum) known
//
//     n = spend * (r^2 + r) rows are drawn in proportion to u:      sum of terms ~ exact + sum b + (sum u) * mean X,   X = (term - b) / u
//
// X has a variance near one whatever the query, so one number serves them all: `spend` was bounded on queries that chose nothing
// else (previews/draws.py). Nothing is looked at between draws, so they need not be independent: one falls on each n-th of the line.
#include <cmath>
#include <limits>

#include "normaliser/betting.h"
#include "normaliser/histogram.h"

namespace headlong {
namespace {

// What is drawn from once the widest are scored.
struct Line {
    Weighed w;
    Scratch<double> before;  // sums of the gaps, run by run
    double exact = 0, known = 0, total = 0, aim = 0;
};

// The middles and gaps, which no spend changes.
Line start_line(const Executor& e, Look& look, int q, const Question& question, const Rule& rule, int threads, const std::vector<Scored>& scored) {
    Line line;
    Weighed& w = line.w;
    line.exact = take_out(e, look, q, scored, question.beta, &w.shift);
    const double fixed = float_error(e, w.shift, question.beta) + dot_error(e, &look.hidden[q * e.dim]) + allow_float32(e, &look.hidden[q * e.dim], question, w);
    line.aim = question.eps - fixed;
    w.slop = static_cast<float>(0x1p-14 + 2 * fixed);
    weigh(e, look, q, rule, question.beta, threads, w);
    return line;
}

template <typename T>
void copy_to(const Scratch<T>& from, Scratch<T>& to) {
    to.resize(from.size());
    std::copy_n(from.data(), from.size(), to.data());
}

Line again(const Line& from) {
    Line line;
    copy_to(from.w.middle, line.w.middle);
    copy_to(from.w.gap, line.w.gap);
    line.w.floats = from.w.floats;
    line.w.sum = from.w.sum;
    line.w.shift = from.w.shift;
    line.w.slop = from.w.slop;
    line.exact = from.exact;
    line.aim = from.aim;
    return line;
}

// Takes the widest out of it.
Status lay_out(const Executor& e, Look& look, int q, const Question& question, const Rule& rule, int threads, std::vector<Scored>& scored,
               Line& line, Answer& answer) {
    const double most = most_rows(e, look);
    Weighed& w = line.w;
    const Wager wager = look_where_it_pays(e, look, q, line.exact, line.aim, rule, question.beta, threads, w, answer);
    line.before.resize(e.padded / kRun + 1);
    if (!(wager.cost < worth_scoring(e, look) * static_cast<double>(e.vocab))) return Status::finish_densely;
    if (!score_widest(e, look, q, wager.edge, 2 * most, question.beta, threads, w, line.before, &line.exact, scored)) return Status::finish_densely;
    line.total = line.before[e.padded / kRun];
    line.known = line.exact + w.sum;
    return out_of_range(line.exact, line.known) || !(line.known > 0) ? Status::finish_densely : Status::done;
}

// The normaliser as `count` rows say, drawn by `key`.
double estimate(const Executor& e, const Look& look, int q, const Question& question, const Line& line, int64_t count, uint64_t key, int threads,
                Answer& answer) {
    double mean = 0;
    if (line.total > 0 && count > 0) {
        const auto term = [&](const Scored& s) { return std::exp(e.linked(s.z) * question.beta - line.w.shift); };
        const std::vector<double> points = spread_points(*e.kernels, key, 0x20000000u, count, line.total);
        for (double x : sample_terms(e, look, q, line.w, line.before, points, threads, term, answer)) mean += x;
        mean /= static_cast<double>(count);
    }
    return line.w.shift + std::log(std::max(line.known + line.total * mean, line.exact));
}

// What may be drawn is far less than what makes a query better read densely.
int64_t count_of(const Executor& e, const Look& look, const Line& line, const Rule& rule) {
    const double wanted = line.total > 0 ? std::ceil(rule.draws(line.aim * line.known / line.total)) : 0;
    return wanted < most_rows(e, look) ? static_cast<int64_t>(wanted) : -1;
}

}  // namespace

// Whether queries taught what is asked: of all classes, and with the eps that they were asked with.
bool may_draw(const Executor& e, const Source& source, const Question& question) {
    if (!(e.draws.spend > 0) || !question.learned || &source != &e.preview || question.delta <= 0) return false;
    return question.eps == e.draws.eps && question.mask == nullptr && question.beta == 1;
}

// And whether float32 is close enough for this query.
bool learned(const Executor& e, const Look& look, int q, const Question& question) {
    if (!may_draw(e, *look.source, question)) return false;
    const double shift = look.masses[q].shift;
    return float_error(e, shift, question.beta) + dot_error(e, &look.hidden[q * e.dim]) < 0.5 * question.eps;
}

Status draw(const Executor& e, Look& look, int q, const Question& question, int threads, std::vector<Scored>& scored, Interval& lse,
            Answer& answer) {
    const Rule rule{0, &e.draws};
    Line line = start_line(e, look, q, question, rule, threads, scored);
    const Status status = lay_out(e, look, q, question, rule, threads, scored, line, answer);
    const int64_t count = status == Status::done ? count_of(e, look, line, rule) : -1;
    if (count < 0) return Status::finish_densely;
    lse = {estimate(e, look, q, question, line, count, key_of(&look.hidden[q * e.dim], e.dim, question.seed), threads, answer), question.eps};
    return Status::done;
}

namespace {

// The estimates of one query, [spends][tries].
void try_one(const Executor& e, const double* hidden, int64_t row, const Question& question, const std::vector<double>& spends, int tries,
             double* out) {
    Look look = start_look(e, e.preview, hidden, {row}, 1);
    look.est.resize(e.padded);
    look_at_all(e, look, question);
    Answer answer;
    std::vector<Scored> scored;
    std::vector<float> est, upper;
    if (look.finish_densely[0].load() != 0) return;
    if (question.k > 0 && !best_of(e, look, 0, question.k, 1, answer.best, scored, est, upper, answer)) return;
    const Interval sure = normaliser(e, look, 0, question, scored, est, upper);
    if (sure.error + dot_error(e, look.hidden.data()) <= question.eps || !learned(e, look, 0, question)) return;
    const Line start = start_line(e, look, 0, question, {0, &e.draws}, 1, scored);
    const std::vector<float> before(look.est.data(), look.est.data() + e.padded);
    Draws draws = e.draws;
    const uint64_t key = key_of(look.hidden.data(), e.dim, question.seed);
    for (size_t s = 0; s < spends.size(); ++s) {
        draws.spend = spends[s];
        const Rule rule{0, &draws};
        Line line = again(start);
        std::copy(before.begin(), before.end(), look.est.data());
        std::vector<Scored> known = scored;
        if (lay_out(e, look, 0, question, rule, 1, known, line, answer) != Status::done) continue;
        const int64_t count = count_of(e, look, line, rule);
        for (int t = 0; count >= 0 && t < tries; ++t)
            out[s * tries + t] = estimate(e, look, 0, question, line, count, mix(key + static_cast<uint64_t>(t)), 1, answer);
    }
}

}  // namespace

std::vector<double> try_draws(const Executor& e, const double* hidden, int64_t count, const Question& question,
                              const std::vector<double>& spends, int tries) {
    const size_t each = spends.size() * static_cast<size_t>(tries);
    std::vector<double> out(static_cast<size_t>(count) * each, std::numeric_limits<double>::quiet_NaN());
    Turns<int64_t> next;
    run_parallel(static_cast<int>(std::min<int64_t>(question.threads, count)), [&](int) {
        for (int64_t i = next++; i < count; i = next++) try_one(e, hidden, i, question, spends, tries, out.data() + static_cast<size_t>(i) * each);
    });
    return out;
}

}  // namespace headlong
