// Who answers a question about an engine's one matrix: the search over blocks where it can, else codes, else the executor of its rows.
//
//     topk(eps = inf), sample(top_k)   need no normaliser: blocks first
//     sample()                         few classes have noise that lets them win whatever their logits are; of the others only large
//                                      logits can, and those are found as in a top-k
//
// All else, large batches, and queries that would open nearly every block are answered by codes or rows. The normaliser of a top-k at
// eps = inf is that of the scored classes alone: a lower bound, with an error of infinity.
//
// Which of these answers a query goes by its batch, and by earlier calls while blocks are on trial. So where blocks are, and delta is not 0,
// no answer says that it is proved, whoever gave it.
#pragma once

#include <vector>

#include "blocks/search.h"
#include "codes/rotated.h"
#include "executor/executor.h"

namespace headlong {

struct SomeRows;

struct Reader {
    const Executor* executor = nullptr;
    const Codes* codes = nullptr;   // or none
    const Blocks* blocks = nullptr;  // or none
    int64_t max_batch = 0, max_k = 0;  // the batches and k that blocks take,
    int64_t max_k_of_batches = 0;      // and k of larger batches
    bool samples = false;              // whether they find plain samples
    bool every = true;                 // the executor knows all classes: else what blocks do not answer has no answer, an empty list

    // Where a mask leaves few classes, their rows alone are read: see few_classes.h.
    std::vector<Answer> topk(const double* rows, int64_t count, const Question& question) const;
    std::vector<Answer> lse(const double* rows, int64_t count, const Question& question) const;
    std::vector<Answer> entropy(const double* rows, int64_t count, Question question) const;
    // As many draws by every rule; one rule is for rows that count up from its first, or each has its own. Where eps is finite, with the
    // normaliser at the rule's temperature and the mass that is kept.
    std::vector<Answer> sample(const double* rows, int64_t count, const std::vector<SampleRule>& rules, const Question& question,
                               std::vector<Draw>* draws) const;

  private:
    bool says_proved(const Question& question) const { return blocks == nullptr || !(question.delta > 0); }
    bool searches(int64_t count, int64_t k) const;
    template <typename Many>
    std::vector<Answer> by_classes_left(const double* rows, int64_t count, const Question& question, const Many& many) const;
    std::vector<Answer> weigh(const double* rows, int64_t count, const Question& question) const;
    std::vector<Answer> find_best(const double* rows, int64_t count, const Question& question) const;
    // Draws for some rows, by a rule for each of all; false where not every class is known.
    bool draw_from_all(const double* rows, const std::vector<int64_t>& some, const std::vector<SampleRule>& rules, const Question& question,
                       std::vector<Draw>* draws, std::vector<Answer>& answers) const;
    std::vector<int64_t> draw_from_rows(const double* rows, const std::vector<int64_t>& some, const std::vector<uint8_t>& whole, const std::vector<SampleRule>& rules,
                                        const Question& question, std::vector<Draw>* draws, std::vector<Answer>& answers) const;
    bool draw_of_codes(const SomeRows& part, const std::vector<int64_t>& some, const std::vector<SampleRule>& rules, std::vector<Draw>* draws,
                       std::vector<Answer>& answers) const;
    bool draw_from_best(const double* rows, const std::vector<int64_t>& some, const std::vector<SampleRule>& rules, const Question& question,
                        std::vector<Draw>* draws, std::vector<Answer>& answers) const;
};

}  // namespace headlong
