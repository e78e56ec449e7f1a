// A search over blocks as an executor's answer.
#pragma once

#include <cmath>

#include "blocks/search.h"
#include "executor/question.h"

namespace headlong {

// The normaliser is that of the scored classes alone, under the link scale * z + shift: a lower bound, and its error is infinite.
inline Answer answer_of(const Search& found, double scale, double shift) {
    Answer answer;
    double sum = 0;
    for (const Found& one : found.best) {
        answer.best.push_back({one.id, one.z});
        if (std::isfinite(one.z)) sum += std::exp((one.z - found.best.front().z) * scale);
    }
    answer.lse = sum > 0 ? found.best.front().z * scale + shift + std::log(sum) : -kInf;
    answer.proved = found.done;
    answer.rows = found.rows;
    answer.bytes = found.bytes;
    return answer;
}

}  // namespace headlong
