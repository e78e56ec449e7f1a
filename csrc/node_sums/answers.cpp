#include "node_sums/answers.h"

#include <algorithm>
#include <cmath>

#include "executor/verbs.h"
#include "node_sums/search.h"
#include "runtime/scratch.h"
#include "runtime/shared_work.h"

namespace headlong {
namespace {

// Some of the queries, asked of others; what they take joins what the searches took.
void ask_others(const Executor& e, const double* hidden, const std::vector<int64_t>& rows, const Question& question, const Others& others,
                std::vector<Answer>* answers) {
    if (rows.empty()) return;
    Scratch<double> some(rows.size() * e.dim);
    for (size_t i = 0; i < rows.size(); ++i) std::copy_n(hidden + rows[i] * e.dim, e.dim, some.data() + i * e.dim);
    std::vector<Answer> found = others(some.data(), static_cast<int64_t>(rows.size()), question);
    for (size_t i = 0; i < found.size(); ++i) {
        Answer& one = (*answers)[rows[i]];
        found[i].rows += one.rows;
        found[i].bytes += one.bytes;
        if (std::isinf(question.eps)) found[i].lse = one.lse, found[i].error = one.error;
        one = std::move(found[i]);
    }
}

}  // namespace

bool sums_are_sought(const Executor& e, const Question& question, bool densely) {
    return e.sums != nullptr && question.sums && std::isfinite(question.eps) && question.mask == nullptr && question.beta == 1 &&
           !(densely && question.k > 0) && !e.sums->trial.over();
}

std::vector<Answer> ask_nodes(const Executor& e, const double* hidden, int64_t count, const Question& question, const Others& others) {
    const NodeSums& s = *e.sums;
    std::vector<Answer> answers(count);
    std::vector<uint8_t> done(count);
    Turns<int64_t> next;
    run_parallel(static_cast<int>(std::min<int64_t>(question.threads, count)), [&](int) {
        for (int64_t q = next++; q < count; q = next++) {
            const double* row = hidden + q * e.dim;
            done[q] = sum_nodes(s, *e.kernels, row, {question.eps, e.link_a, e.link_b, dot_error(e, row)}, &answers[q]);
            answers[q].proved = true;
        }
    });
    std::vector<int64_t> found, left;
    for (int64_t q = 0; q < count; ++q) {
        (done[q] ? found : left).push_back(q);
        s.trial.count(answers[q].bytes, done[q]);
    }
    Question ids = question, again = question;
    ids.eps = kInf;
    again.sums = false;
    if (question.k > 0) ask_others(e, hidden, found, ids, others, &answers);
    ask_others(e, hidden, left, again, others, &answers);
    return answers;
}

}  // namespace headlong
