#include "reader/few_classes.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "executor/verbs.h"
#include "runtime/shared_work.h"

namespace headlong {
namespace {

constexpr int64_t kFewAtLeast = 64, kFewPart = 64;  // gathered rows: beyond, a scan of all classes under the mask is cheaper
constexpr int64_t kSmall = 65536;                    // products that one thread has sooner done than shared out

// Eight bytes of a mask, each 0 or 1.
uint64_t word_at(const uint8_t* mask) {
    uint64_t word;
    std::memcpy(&word, mask, sizeof word);
    return word;
}

int64_t ones(const uint8_t* mask, int64_t vocab) {
    int64_t sum = 0, id = 0;
    for (; id + 8 <= vocab; id += 8) sum += static_cast<int64_t>((word_at(mask + id) * 0x0101010101010101u) >> 56);
    for (; id < vocab; ++id) sum += mask[id];
    return sum;
}

std::vector<int64_t> listed(const uint8_t* mask, int64_t vocab) {
    std::vector<int64_t> ids;
    for (int64_t first = 0; first < vocab; first += 8) {
        const int64_t stop = std::min(vocab, first + 8);
        if (stop == first + 8 && word_at(mask + first) == 0) continue;
        for (int64_t id = first; id < stop; ++id)
            if (mask[id] != 0) ids.push_back(id);
    }
    return ids;
}

// log sum exp of what was scored, in the order of their ids.
double lse_of(const Executor& e, const std::vector<Scored>& scored, double beta) {
    double top = -kInf, sum = 0;
    for (const Scored& one : scored) top = std::max(top, e.linked(one.z) * beta);
    if (!std::isfinite(top)) return top;
    for (const Scored& one : scored) sum += std::exp(e.linked(one.z) * beta - top);
    return top + std::log(sum);
}

}  // namespace

FewClasses::FewClasses(const Question& question, int64_t count, int64_t vocab) {
    const int64_t masks = question.mask == nullptr ? 0 : question.mask_per_row ? count : 1, few = std::max(kFewAtLeast, vocab / kFewPart);
    for (int64_t row = 0; row < count; ++row) {
        bool own = masks == 1 && row > 0 && !rows.empty();
        if (row < masks) {
            const uint8_t* mask = question.mask + row * vocab;
            const int64_t left = ones(mask, vocab);
            own = left <= few && few < vocab;
            if (own) ids_.push_back(listed(mask, vocab));
            some_empty |= left == 0;
        }
        (own ? rows : others).push_back(row);
    }
}

void FewClasses::answer(const Executor& e, const double* hidden, const Question& question, const SampleRule* rules, Draw* draws,
                        std::vector<Answer>& answers) const {
    const auto n = static_cast<int64_t>(rows.size());
    if (n == 0) return;
    const int64_t products = n * static_cast<int64_t>(ids_.front().size()) * e.dim;
    Turns<int64_t> next;
    run_parallel(products < kSmall ? 1 : static_cast<int>(std::min<int64_t>(n, question.threads)), [&](int) {
        for (int64_t i = next++; i < n; i = next++) {
            const std::vector<int64_t>& ids = ids_[ids_.size() > 1 ? i : 0];
            const auto m = static_cast<int64_t>(ids.size());
            const double* own = hidden + rows[i] * e.dim;
            std::vector<double> z(m);
            if (m > 0) logits(e, own, 1, ids.data(), m, n == 1 ? question.threads : 1, z.data());
            Answer& answer = answers[rows[i]];
            for (int64_t j = 0; j < m; ++j)
                if (std::isfinite(z[j])) answer.best.push_back({ids[j], z[j]});
            const SampleRule* rule = rules == nullptr ? nullptr : rules + rows[i];
            const double beta = rule == nullptr ? question.beta : 1 / rule->temperature;
            answer.lse = lse_of(e, answer.best, beta);
            answer.error = exact_error(e, own, beta, answer.lse);
            answer.proved = answer.few = true;
            answer.rows = m, answer.bytes = static_cast<double>(m) * e.row_bytes();
            std::sort(answer.best.begin(), answer.best.end(), better);
            if (rule != nullptr) draw_among(e, answer, true, *rule, question.eps, draws + rows[i] * rule->n);
        }
    });
}

}  // namespace headlong
