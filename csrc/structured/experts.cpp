#include "runtime/shared_work.h"
#include "structured/experts.h"

#include <algorithm>
#include <numeric>

#include "kernels/any_rows.h"
#include "runtime/pool.h"

namespace headlong {
namespace {

constexpr double kUnit = 0x1p-53;

// What of eps an expert's own answer may use: the rounding of the gate counts twice in a log-probability, in its logit and in lse. The
// same for all queries in which that is next to nothing; others are asked alone, since no answer may go by who comes with it.
double left_of(double eps, double error) { return std::min(eps * (1 - 0x1p-10), (eps - 2 * error) * (1 - 0x1p-50)); }

double norm(const double* x, int64_t n) { return std::sqrt(std::inner_product(x, x + n, x, 0.0)); }

}  // namespace

Route Experts::choose(const double* x, double* scores) const {
    const int64_t count = static_cast<int64_t>(experts.size());
    experts[0]->kernels->dot_rows(gate, Kind::f32, width, nullptr, count, x, scores);
    Route route;
    for (int64_t k = 1; k < count; ++k)
        if (scores[k] > scores[route.expert]) route.expert = k;
    const double best = scores[route.expert], off = (static_cast<double>(width) + 4) * kUnit * most_gate * norm(x, width);
    double sum = 0;
    for (int64_t k = 0; k < count; ++k) {
        sum += std::exp(scores[k] - best);
        if (k != route.expert && best - scores[k] <= 2 * off) route.sure = false;
    }
    route.value = scaled ? 1 / sum : 1;
    route.wrong = scaled ? 2 * off + (static_cast<double>(count) + 8) * kUnit : 0;
    return route;
}

Routed Experts::route(const double* hidden, int64_t count) const {
    Routed to;
    to.routes.resize(count);
    to.x.resize(count * width);
    to.error.resize(count);
    std::vector<double> scores(experts.size());
    for (int64_t q = 0; q < count; ++q) {
        double* x = &to.x[q * width];
        std::copy_n(hidden + q * dim, dim, x);
        if (constant) x[dim] = 1;
        const Route route = to.routes[q] = choose(x, scores.data());
        for (int64_t j = 0; j < width; ++j) x[j] *= route.value;
        to.error[q] = (route.wrong + 2 * kUnit) * experts[route.expert]->most_norm * norm(x, width) * (1 + 0x1p-20);
    }
    return to;
}

std::vector<Answer> Experts::ask(const Routed& routed, const Question& question) const {
    const int64_t count = static_cast<int64_t>(routed.routes.size());
    std::vector<Answer> answers(count);
    std::vector<std::vector<int64_t>> mine(experts.size());
    for (int64_t q = 0; q < count; ++q) mine[routed.routes[q].expert].push_back(q);
    std::vector<int64_t> busy;
    for (size_t e = 0; e < experts.size(); ++e)
        if (!mine[e].empty()) busy.push_back(static_cast<int64_t>(e));
    auto one = [&](int64_t e, int threads) {
        const auto ask_for = [&](const std::vector<int64_t>& rows, double eps) {
            Question asked = question;
            asked.k = std::min(question.k, size(e)), asked.threads = threads, asked.eps = eps;
            std::vector<double> x(rows.size() * width);
            for (size_t i = 0; i < rows.size(); ++i) std::copy_n(&routed.x[rows[i] * width], width, &x[i * width]);
            std::vector<Answer> found = headlong::ask(*experts[e], x.data(), static_cast<int64_t>(rows.size()), asked);
            for (size_t i = 0; i < rows.size(); ++i) {
                for (Scored& s : found[i].best) s.id = ids[starts[e] + s.id];
                found[i].proved = found[i].proved && routed.routes[rows[i]].sure;
                answers[rows[i]] = std::move(found[i]);
            }
        };
        const double usual = left_of(question.eps, 0);
        std::vector<int64_t> together;
        for (const int64_t q : mine[e]) {
            const double own = left_of(question.eps, routed.error[q]);
            if (own == usual) together.push_back(q);
            else ask_for({q}, own);
        }
        if (!together.empty()) ask_for(together, usual);
    };
    if (busy.size() == 1) {
        one(busy[0], question.threads);
        return answers;
    }
    Turns<size_t> next;
    run_parallel(std::min<int>(question.threads, static_cast<int>(busy.size())), [&](int) {
        for (size_t i = next++; i < busy.size(); i = next++) one(busy[i], 1);
    });
    return answers;
}

void Experts::logits(const Routed& routed, const int64_t* classes, int64_t m, double* out) const {
    std::vector<int64_t> places;
    std::vector<double> z;
    for (size_t q = 0; q < routed.routes.size(); ++q) {
        const int64_t e = routed.routes[q].expert;
        const int64_t *first = ids + starts[e], *last = ids + starts[e + 1];
        places.clear();
        for (int64_t j = 0; j < m; ++j) {
            const int64_t* at = std::lower_bound(first, last, classes[q * m + j]);
            if (at != last && *at == classes[q * m + j]) places.push_back(at - first);
        }
        z.resize(places.size());
        headlong::logits(*experts[e], &routed.x[q * width], 1, places.data(), static_cast<int64_t>(places.size()), 1, z.data());
        for (int64_t j = 0, found = 0; j < m; ++j) {
            const size_t next = static_cast<size_t>(found);
            const bool here = next < places.size() && first[places[next]] == classes[q * m + j];
            out[q * m + j] = here ? z[found++] : -kInf;
        }
    }
}

void Experts::all_logits(int64_t expert, const double* x, double* out) const {
    const Executor& e = *experts[expert];
    dot_rows(*e.kernels, e.weight, e.kind, width, nullptr, e.vocab, x, out);
}

void Experts::everything(const Routed& routed, int64_t vocab, int threads, double* out) const {
    Turns<size_t> next;
    run_parallel(std::min<int>(threads, std::max<int>(1, static_cast<int>(routed.routes.size()))), [&](int) {
        std::vector<double> z;
        for (size_t q = next++; q < routed.routes.size(); q = next++) {
            const int64_t e = routed.routes[q].expert;
            z.resize(size(e));
            all_logits(e, &routed.x[q * width], z.data());
            for (int64_t i = 0; i < size(e); ++i) out[q * vocab + ids[starts[e] + i]] = z[i];
        }
    });
}

void Experts::draw_from_all(const Route& route, const double* x, const SampleRule& rule, Draw* draws) const {
    const int64_t e = route.expert, *names = ids + starts[e];
    std::vector<double> z(size(e));
    all_logits(e, x, z.data());
    for (int n = 0; n < rule.n; ++n)
        for (int64_t i = 0; i < size(e); ++i) {
            const double key = z[i] / rule.temperature + gumbel(rule.seed, rule.row0, static_cast<uint32_t>(n), names[i]);
            if (key > draws[n].score) draws[n] = {names[i], z[i], key, route.sure};
        }
}

std::vector<Draw> Experts::sample(const Routed& routed, const SampleRule& rule, int threads) const {
    const size_t count = routed.routes.size();
    std::vector<Draw> draws(count * rule.n);
    Turns<size_t> next;
    run_parallel(std::min<int>(threads, std::max<int>(1, static_cast<int>(count))), [&](int) {
        for (size_t q = next++; q < count; q = next++) {
            SampleRule mine = rule;
            mine.row0 += q;
            draw_from_all(routed.routes[q], &routed.x[q * width], mine, &draws[q * rule.n]);
        }
    });
    return draws;
}

}  // namespace headlong
