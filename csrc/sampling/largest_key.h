// The keys link(z) / T + gumbel of one query's classes that were scored, of which the largest is a draw; and what those of the others
// have to reach.
//
// The noise of most classes is below a number that few exceed. Of those, none can win whose logit is below what the best key so far,
// less that number, comes to: a search for large logits finds them. The few others are looked at one by one. (Mussmann, Levy, Ermon
// 2017 draw so with noise that is made for the purpose; here it is every class's own.)
#pragma once

#include <vector>

#include "executor/question.h"

namespace headlong {

// A class with high noise in one of the draws, and the first 32 bits of that noise.
struct Lucky {
    int64_t id;
    uint32_t word, draw;
};

class LargestKey {
  public:
    // The key of query `row` under a link scale * z + shift; classes are lucky from the noise word `least` on.
    LargestKey(const SampleRule& rule, uint64_t row, double scale, double shift, uint64_t least);

    // A class was scored.
    void take(int64_t id, double z);
    // Whether a class whose logit is at most `upper` may have the largest key of a draw.
    bool may_win(int64_t id, double upper) const;
    // The same of the draw for which it is lucky.
    bool may_win(const Lucky& one, double upper) const;
    // No class with a smaller logit can win where it is not lucky.
    double least() const;
    // What other classes came to.
    void join(const LargestKey& other);

    std::vector<Lucky> lucky;  // those that the caller knows of, the first `luckiest` of them to be looked at before the others
    size_t luckiest = 0;
    void luckiest_first(int64_t vocab);
    const std::vector<Draw>& draws() const { return draws_; }

  private:
    bool wins(double f, uint32_t word, const Draw& best) const;
    double linked(double z) const { return headlong::linked(LinkForm::affine, scale_, shift_, z) / rule_.temperature; }

    SampleRule rule_;
    uint64_t row_;
    double scale_, shift_, noise_below_;
    std::vector<Draw> draws_;
};

}  // namespace headlong
