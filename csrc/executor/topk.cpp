// Resolving the ids of one query from what a look at all classes gathered: the k best estimates are scored exactly, their
// worst is the threshold; what can still reach it is looked at level by level, and what is left is scored, best first.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>

#include "batch/state.h"
#include "executor/histogram.h"

namespace headlong {

std::vector<Answer> ask(const Executor& e, const double* hidden, int64_t count, const Question& question,
                                  bool dense_only) {
    std::vector<Answer> answers(count);
    std::vector<int64_t> rows(count);
    std::iota(rows.begin(), rows.end(), 0);
    if (!dense_only && side_by_side(e, question, count)) rows = ask_side_by_side(e, hidden, count, question, answers);
    if (rows.empty()) return answers;
    Question asked = question;
    asked.keep = question.keep || (e.budget > 0 && e.has_preview && !dense_only);
    over_blocks(e, 
        hidden, rows, asked, dense_only,
        [&](Look& look, int q, int threads, Answer& answer) {
            return by_budget(e, look) ? resolve_budget(e, look, q, question, threads, answer)
                             : resolve(e, look, q, question, threads, answer);
        },
        [&](const std::vector<int64_t>& left) { finish(e, hidden, left, question, answers); },
        answers);
    return answers;
}

Status resolve(const Executor& e, Look& look, int q, const Question& question, int threads, Answer& answer) {
    std::vector<Scored> scored;
    std::vector<float> est, upper;
    answer.best.clear();
    if (question.k > 0 && !best_of(e, look, q, question.k, threads, answer.best, scored, est, upper, answer)) {
        answer.rows += static_cast<int64_t>(scored.size());
        answer.bytes += static_cast<double>(scored.size()) * e.row_bytes();
        return Status::dear;
    }
    Interval lse = normaliser(e, look, q, question, scored, est, upper);
    lse.error += dot_error(e, &look.hidden[q * e.dim]);
    Status status = Status::done;
    if (!(lse.error <= question.eps)) {
        if (look.est.empty()) status = Status::keep;
        else if (question.delta > 0 && look.source == &e.preview)
            status = bet(e, look, q, question, threads, scored, lse, answer);
        else status = refine(e, look, q, question, threads, scored, lse, answer);
    }
    answer.rows += static_cast<int64_t>(scored.size());
    answer.bytes += static_cast<double>(scored.size()) * e.row_bytes();
    answer.lse = lse.value;
    answer.error = lse.error;
    answer.proved = true;
    return status;
}

// The k best classes, proved. `scored` gets all rows scored on the way, `est` and `upper` what was thought of them; `known`, with
// the look's kept estimates, what was read of the others.
bool best_of(const Executor& e, Look& look, int q, int64_t k, int threads, std::vector<Scored>& best,
                       std::vector<Scored>& scored, std::vector<float>& est, std::vector<float>& upper,
                       Answer& answer, Known* known) {
    struct Candidate {
        int32_t id;
        float est, upper, closer;  // closer: the upper end by the deepest look so far
    };
    std::vector<float> lowers;
    size_t total = 0;
    for (int t = 0; t < look.threads; ++t) {
        const Part& part = look.parts[static_cast<size_t>(q) * look.threads + t];
        lowers.insert(lowers.end(), part.best.begin(), part.best.end());
        total += part.ids.size();
    }
    // The threshold of the look and the k-th lower end: their maximum is the same whichever thread came first, and so is
    // what reaches it.
    float floor = look.threshold[q].load();
    if (static_cast<int64_t>(lowers.size()) >= k) {
        std::nth_element(lowers.begin(), lowers.begin() + (k - 1), lowers.end(), std::greater<float>());
        floor = std::max(floor, lowers[k - 1]);
    }
    std::vector<Candidate> all;
    all.reserve(total);
    for (int t = 0; t < look.threads; ++t) {
        const Part& part = look.parts[static_cast<size_t>(q) * look.threads + t];
        for (size_t i = 0; i < part.ids.size(); ++i)
            if (part.upper[i] >= floor) all.push_back({part.ids[i], part.est[i], part.upper[i], part.upper[i]});
    }
    const int64_t sure = std::min<int64_t>(k, static_cast<int64_t>(all.size()));
    if (sure == 0) return true;
    const double* hidden = &look.hidden[q * e.dim];
    auto score_range = [&](size_t from, size_t to) {
        std::vector<Scored> rows(to - from);
        for (size_t i = from; i < to; ++i) rows[i - from] = {all[i].id, 0};
        score(e, hidden, rows, threads);
        for (size_t i = from; i < to; ++i) {
            scored.push_back(rows[i - from]);
            est.push_back(all[i].est);
            upper.push_back(all[i].upper);
            best.push_back(rows[i - from]);
        }
        std::sort(best.begin(), best.end(), better);
        if (static_cast<int64_t>(best.size()) > k) best.resize(k);
    };
    const auto by_est = [](const Candidate& a, const Candidate& b) { return a.est > b.est || (a.est == b.est && a.id < b.id); };
    std::nth_element(all.begin(), all.begin() + (sure - 1), all.end(), by_est);
    std::sort(all.begin(), all.begin() + sure, by_est);
    score_range(0, sure);
    auto open = std::partition(all.begin() + sure, all.end(), [&](const Candidate& c) { return c.upper >= best.back().z; });
    for (size_t level = 0; look.source == &e.preview && level < e.deeper.size(); ++level) {
        const size_t n = open - (all.begin() + sure);
        if (n < 4) break;
        const int64_t grain = 64, groups = (static_cast<int64_t>(n) + grain - 1) / grain;
        over_chunks(groups, groups < 2 ? 1 : threads, [&](int, int64_t g) {
            const int64_t first = sure + g * grain, count = std::min<int64_t>(grain, sure + static_cast<int64_t>(n) - first);
            int32_t ids[grain];
            float closer[grain], rad[grain];
            for (int64_t i = 0; i < count; ++i) {
                ids[i] = all[first + i].id;
                closer[i] = all[first + i].est;
            }
            look_deeper(e, look, q, static_cast<int>(level), ids, count, closer, rad);
            // The normaliser goes on with the interval of the look at all classes, so only the upper end moves here.
            for (int64_t i = 0; i < count; ++i) all[first + i].closer = std::min(all[first + i].upper, closer[i] + rad[i]);
            for (int64_t i = 0; known != nullptr && i < count; ++i) {
                look.est[q * e.padded + ids[i]] = closer[i];
                known->rad[ids[i]] = rad[i];
                known->depth[ids[i]] = static_cast<uint8_t>(level + 1);
            }
        });
        answer.bytes += static_cast<double>(n) * e.deeper[level].bytes;
        open = std::partition(all.begin() + sure, open, [&](const Candidate& c) { return c.closer >= best.back().z; });
    }
    const int64_t left = open - (all.begin() + sure);
    if (left > std::max<int64_t>(static_cast<int64_t>(e.share * e.vocab), 2 * k)) return false;
    std::sort(all.begin() + sure, open, [](const Candidate& a, const Candidate& b) {
        return a.closer > b.closer || (a.closer == b.closer && a.id < b.id);
    });
    const size_t stop = static_cast<size_t>(open - all.begin()), grain = 32;
    for (size_t at = sure; at < stop && all[at].closer >= best.back().z;) {
        size_t to = at;
        while (to < stop && to < at + grain && all[to].closer >= best.back().z) ++to;
        score_range(at, to);
        at = to;
    }
    return true;
}

// The estimates of `ids` after a deeper level, from those before it, and their radii.
void look_deeper(const Executor& e, const Look& look, int q, int level, const int32_t* ids, int64_t count, float* est, float* rad) {
    const Deeper& from = e.deeper[level];
    const DeeperQuery& query = look.prepared.deeper[q * e.deeper.size() + level];
    constexpr int64_t kGrain = 64;
    int32_t dots[2 * kGrain];
    for (int64_t start = 0; start < count; start += kGrain) {
        const int64_t n = std::min(kGrain, count - start);
        const int32_t* some = ids + start;
        for (int64_t i = 0; i < n; ++i)
            if (!from.adds) est[start + i] = e.preview.base[some[i]] + look.prepared.add[q];
        for (size_t s = 0; s < from.segments.size(); ++s) {
            const Segment& seg = from.segments[s];
            e.kernels->dot_codes(from.codes + seg.first_word, from.bytes, some, n, seg.words, seg.bits, &query.high[seg.first_quad],
                               &query.low[seg.first_quad], dots);
            for (int64_t i = 0; i < n; ++i) {
                const float dot = 256.f * static_cast<float>(dots[2 * i] - query.offset[2 * s]) +
                                  static_cast<float>(dots[2 * i + 1] - query.offset[2 * s + 1]);
                est[start + i] += dot * (from.scale[s * e.padded + some[i]] * query.step[s]);
            }
        }
        for (int64_t i = 0; i < n; ++i) {
            float sum = query.radius.constant;
            for (int r = 0; r < query.radius.terms; ++r) sum += query.radius.slack[r][some[i]] * query.radius.term[r];
            rad[start + i] = sum;
        }
    }
}

// SVD-softmax as published: the `budget` best estimates (at least k) are scored and leave look.est; the others keep their
// preview in the normaliser.
std::vector<Scored> spend_budget(const Executor& e, Look& look, int q, const Question& question, int threads, Interval& lse) {
    float* est = look.est.data() + q * e.padded;
    const float none = -std::numeric_limits<float>::infinity();
    std::vector<float> order(est, est + e.vocab);
    const int64_t n = std::min(std::max(e.budget, question.k), e.vocab);
    std::nth_element(order.begin(), order.begin() + (n - 1), order.end(), std::greater<float>());
    std::vector<Scored> scored;
    scored.reserve(n);
    for (int64_t pass = 0; pass < 2; ++pass)  // above the n-th largest first, then its equals, smaller ids first
        for (int64_t i = 0; i < e.vocab && static_cast<int64_t>(scored.size()) < n; ++i)
            if (est[i] > none && (pass == 0 ? est[i] > order[n - 1] : est[i] == order[n - 1])) scored.push_back({i, 0});
    score(e, &look.hidden[q * e.dim], scored, threads);
    double shift = -kInf, sum = 0;
    for (const Scored& s : scored) {
        shift = std::max(shift, e.linked(s.z) * question.beta);
        est[s.id] = none;
    }
    for (const Scored& s : scored) sum += std::exp(e.linked(s.z) * question.beta - shift);
    bool finite = true;
    const float top = e.kernels->largest(est, e.padded, &finite), rest_shift = static_cast<float>(e.linked(top) * question.beta);
    double rest = 0;
    if (top > none && float_error(e, rest_shift, question.beta) < 1e-2) {
        Kernels::Sums sums{0, 0, 0, 0};
        const std::vector<float> rad(kChunk, 0.f);
        for (int64_t c = 0; c < e.padded; c += kChunk)
            e.kernels->interval_sums(est + c, rad.data(), std::min<int64_t>(kChunk, e.padded - c), 0.f, e.link,
                                   static_cast<float>(question.beta), rest_shift, &sums);
        rest = sums.centre;
    } else if (top > none) {  // logits so large that float32 has no digits left for their differences
        for (int64_t i = 0; i < e.vocab; ++i)
            if (est[i] > none) rest += std::exp(e.linked(est[i]) * question.beta - rest_shift);
    }
    const double most = std::max(shift, rest > 0 ? rest_shift + std::log(rest) : -kInf);
    if (most > -kInf)
        shift = most + std::log((sum > 0 ? sum * std::exp(shift - most) : 0) +
                                (rest > 0 ? std::exp(rest_shift + std::log(rest) - most) : 0));
    lse = {shift, kInf};
    std::sort(scored.begin(), scored.end(), better);
    return scored;
}

Status resolve_budget(const Executor& e, Look& look, int q, const Question& question, int threads, Answer& answer) {
    Interval lse{0, kInf};
    answer.best = spend_budget(e, look, q, question, threads, lse);
    answer.rows = static_cast<int64_t>(answer.best.size());
    answer.bytes += static_cast<double>(answer.best.size()) * e.row_bytes();
    if (static_cast<int64_t>(answer.best.size()) > question.k) answer.best.resize(question.k);
    answer.lse = lse.value;
    answer.error = lse.error;
    answer.proved = false;
    return Status::done;
}

}  // namespace headlong
