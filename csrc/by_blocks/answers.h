// A search over blocks as an executor's answer.
#pragma once

#include <algorithm>
#include <cmath>

#include "blocks/search.h"
#include "executor/question.h"

namespace headlong {

// The normaliser is that of the scored classes alone, under the link scale * z + shift: a lower bound, and its error is infinite.
inline Answer answer_of(const SearchResult& found, double scale, double shift) {
    Answer answer;
    double sum = 0;
    for (const ScoredClass& one : found.best) {
        answer.best.push_back({one.id, one.z});
        if (std::isfinite(one.z)) sum += std::exp((one.z - found.best.front().z) * scale);
    }
    answer.lse = sum > 0 ? found.best.front().z * scale + shift + std::log(sum) : -kInf;
    answer.proved = found.done;
    answer.rows = found.rows;
    answer.bytes = found.bytes;
    return answer;
}

// What a search has to reach so that classes that it does not score leave a normaliser within eps.
inline Reach reach_for(double eps, double scale, int64_t vocab) {
    return {scale, std::log(static_cast<double>(vocab)) - std::log(std::expm1(1.8 * std::min(eps, 8.0)))};  // 1.8 < 2: roundings have the rest
}

// The k best and the normaliser of all classes, `vocab` of them at most: those that were not scored lie below the search's floor.
// What a logit's rounding adds to the error is `fixed`. False where the answer is further off than eps.
inline bool answer_within(const SearchResult& found, double scale, double shift, int64_t vocab, int64_t k, double eps, double fixed, Answer* answer) {
    if (!found.done || found.best.empty() || !std::isfinite(found.best.front().z)) return false;
    const double most = found.best.front().z;
    double sum = 0;
    for (const ScoredClass& one : found.best) {
        if (!std::isfinite(one.z)) return false;
        sum += std::exp((one.z - most) * scale);
    }
    const double rest = static_cast<double>(vocab) * std::exp((static_cast<double>(found.floor) - most) * scale);
    const double half = 0.5 * std::log1p(rest / sum);
    answer->lse = most * scale + shift + std::log(sum) + half;
    answer->error = half * (1 + 0x1p-40) + fixed + 0x1p-52 * (static_cast<double>(found.best.size()) + 16 + 4 * std::fabs(answer->lse));
    if (!(answer->error <= eps)) return false;
    for (int64_t i = 0; i < std::min(k, static_cast<int64_t>(found.best.size())); ++i) answer->best.push_back({found.best[i].id, found.best[i].z});
    answer->proved = true;
    answer->rows = found.rows;
    answer->bytes = found.bytes;
    return true;
}

}  // namespace headlong
