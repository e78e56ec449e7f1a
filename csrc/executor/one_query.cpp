// One query's answer from what its group's look found: the ids, then the normaliser. Where intervals alone leave that wider than asked
// for, here is which way is tried first: all classes bounded together, a bet, a proof class by class.
#include <cmath>

#include "executor/verbs.h"
#include "runtime/trace.h"

namespace headlong {
namespace {

constexpr double kUsed = 0.1;  // the share of a radius that is used, as a root of mean squares, where nothing was scored

// The share of their radii that scored classes used, as a root of mean squares, and a few more of which nothing is known.
double used(const std::vector<Scored>& scored, const std::vector<float>& est, const std::vector<float>& upper) {
    double squares = 4 * kUsed * kUsed, count = 4;
    for (size_t i = 0; i < scored.size(); ++i) {
        const double share = (scored[i].z - est[i]) / (static_cast<double>(upper[i]) - est[i]);
        if (!(std::fabs(share) <= 1)) continue;
        squares += share * share;
        ++count;
    }
    return std::sqrt(squares / count);
}

}  // namespace

Status resolve(const Executor& e, Look& look, int q, const Question& question, int threads, Answer& answer) {
    std::vector<Scored> scored;
    std::vector<float> est, upper;
    answer.best.clear();
    if (question.k > 0 && !best_of(e, look, q, question.k, threads, answer.best, scored, est, upper)) {
        answer.rows += static_cast<int64_t>(scored.size());
        answer.bytes += static_cast<double>(scored.size()) * e.row_bytes();
        return Status::finish_densely;
    }
    mark("best");
    Interval lse = normaliser(e, look, q, question, scored, est, upper);
    lse.error += dot_error(e, &look.hidden[q * e.dim]);
    Status status = Status::done;
    if (!(lse.error <= question.eps)) {
        look.wanted[q] = 1;
        if (look.est.empty()) status = Status::keep;
        else if (const auto found = close_together(e, look, q, question, threads, scored, lse, answer)) status = *found;
        else if (question.delta > 0 && look.source == &e.preview)
            status = bet(e, look, q, question, used(scored, est, upper), threads, scored, lse, answer);
        else status = refine(e, look, q, question, threads, scored, lse, answer);
    }
    mark("normaliser");
    answer.rows += static_cast<int64_t>(scored.size());
    answer.bytes += static_cast<double>(scored.size()) * e.row_bytes();
    answer.lse = lse.value;
    answer.error = lse.error;
    answer.proved = true;
    return status;
}

}  // namespace headlong
