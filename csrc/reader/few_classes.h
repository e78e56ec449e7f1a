// Answers over the few classes that a mask leaves: their exact rows alone, whatever reads the others.
#pragma once

#include <vector>

#include "executor/executor.h"

namespace headlong {

// The rows of a batch of which a mask leaves few classes, and the other rows. How a row is answered depends on the row alone: on nothing that pads
// it, and not on who is asked with it.
struct FewClasses {
    FewClasses(const Question& question, int64_t count, int64_t vocab);

    // The best of these classes, their normaliser and, where there are rules for all rows of the batch, draws. Where no logit is a number, none is drawn.
    void answer(const Executor& e, const double* hidden, const Question& question, const SampleRule* rules, Draw* draws,
                std::vector<Answer>& answers) const;

    std::vector<int64_t> rows, others;
    bool some_empty = false;  // of the rows: no class is left

  private:
    std::vector<std::vector<int64_t>> ids_;  // ascending, of each of the rows, or of all of them
};

}  // namespace headlong
