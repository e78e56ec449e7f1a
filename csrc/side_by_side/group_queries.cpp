// Many queries side by side: a group of up to 64 goes over the classes once, each query in a lane of its own. What is shared
// makes the looks cheap: a class that is wide for several of them is looked at more closely at once, for all.
//
// In one pass every class adds its middle b to its queries' sums, is reported where it may be among the best or where its gap u is so
// wide that its row is worth scoring, and of the other gaps, laid end to end, points at exponential distances take their sample:
// given how many there are, they are drawn independently in proportion to u, as the bet (normaliser/by_bet.cpp) wants them. More points
// than needed are marked, each with a uniform number; those with the least marks are scored until the bet is won.
//
// What a pass needs to know beforehand comes from every eighth piece of the classes: the threshold, and about how large the sum
// is. A query that this does not serve is left to the others' way.
#include "runtime/shared_work.h"
#include "side_by_side/state.h"

#include <algorithm>
#include <numeric>

#include "runtime/pool.h"
#include "runtime/trace.h"

namespace headlong {
namespace {

constexpr double kFilled = 0.6, kFilledByIds = 0.85;  // of the lanes, below which a query is better off alone
constexpr int64_t kShareCodes = 32, kManyCoordinates = 128;  // lanes below which so many of few bits are taken apart in vain
constexpr int64_t kLeastClasses = 8192;
constexpr int64_t kMostBest = 64;  // of the sample's best

int64_t lanes_of(int64_t n) { return n <= 8 ? 8 : (n + 15) / 16 * 16; }

// How many of `left` queries go together: as many as fill their lanes, or all lanes that can be filled, and no fewer lanes
// than `least`.
int64_t group_of(int64_t left, double filled, int64_t least) {
    const int64_t all = std::min<int64_t>(left, kGroupQueries), lanes = lanes_of(all);
    const bool fills = static_cast<double>(all) >= filled * static_cast<double>(lanes);
    const int64_t some = fills ? all : lanes <= 8 ? 0 : lanes == 16 ? 8 : lanes - 16;
    return lanes_of(some) < least ? 0 : some;
}

// Answers queries first .. first + count - 1, those that can be: returns which; none at all where they are better read densely.
std::vector<uint8_t> answer_group(const Executor& e, const double* hidden, int64_t first, int64_t count, const Question& question,
                                  std::vector<Answer>& answers) {
    BatchState batch;
    batch.n = static_cast<int>(count);
    batch.lanes = static_cast<int>(lanes_of(batch.n));
    batch.threads = batch.look.threads = question.threads;
    batch.look.source = &e.preview;
    batch.look.rows.resize(batch.n);
    std::iota(batch.look.rows.begin(), batch.look.rows.end(), first);
    batch.look.hidden.resize(batch.n * e.dim);
    std::copy_n(hidden + first * e.dim, batch.n * e.dim, batch.look.hidden.data());
    prepare_batch(e, batch);
    read_sample(e, batch, question);
    mark("batch: sample");
    if (!pass_over(e, batch)) return {};
    const double shared = e.preview.bytes + static_cast<double>(batch.closer.load()) * static_cast<double>(e.deeper[0].bytes);
    std::vector<uint8_t> done(batch.n, 0);
    Turns<int> next;
    run_parallel(std::min(batch.threads, batch.n), [&](int) {
        for (int q = next++; q < batch.n; q = next++) {
            Answer& answer = answers[first + q];
            answer.bytes += shared / batch.n;
            const bool asked = !batch.sampled[q].empty() && (batch.theta[q] > 0 || !(question.eps < kInf));
            done[q] = asked && batch.reported[q] <= batch.most_reported && resolve_reported(e, batch, question, q, answer);
        }
    });
    mark("batch: each query");
    return done;
}

}  // namespace

// Whether a call is one for ask_side_by_side: intervals from codes of the coordinates that lead, and finer ones behind them.
bool side_by_side(const Executor& e, const Question& question, int64_t count) {
    if (!e.has_preview || count < 2 || question.mask != nullptr || e.budget > 0 || e.link.form != LinkForm::affine || !(e.link_a > 0)) return false;
    if (e.preview.codes == nullptr || !e.preview.rotated || e.rotation.tiles.empty() || e.deeper.size() != 1 || !e.deeper[0].adds) return false;
    if (e.vocab < kLeastClasses || question.k > kMostBest || e.preview.terms.empty()) return false;
    if (question.eps < kInf && !(question.delta > 0)) return false;
    const auto whole = [](const Segment& seg) { return seg.words > 0; };
    return std::all_of(e.preview.segments.begin(), e.preview.segments.end(), whole) &&
           std::all_of(e.deeper[0].segments.begin(), e.deeper[0].segments.end(),
                       [&](const Segment& seg) { return whole(seg) && seg.words % 4 == 0; });
}

// Answers what it can; returns the rows that are left, and says whether these are better read densely.
std::vector<int64_t> ask_side_by_side(const Executor& e, const double* hidden, int64_t count, const Question& question,
                                      std::vector<Answer>& answers, bool* expensive) {
    std::vector<int64_t> left;
    const auto few = [](const Segment& seg) { return seg.bits < 8; };
    const auto more = [](int64_t sum, const Segment& seg) { return sum + seg.stop - seg.start; };
    const bool many = std::any_of(e.preview.segments.begin(), e.preview.segments.end(), few) &&
                      std::accumulate(e.preview.segments.begin(), e.preview.segments.end(), int64_t{0}, more) > kManyCoordinates;
    const int64_t least = many ? kShareCodes : 0;
    int64_t first = 0;
    while (first < count) {
        const int64_t some = group_of(count - first, question.eps < kInf ? kFilled : kFilledByIds, least);
        if (some == 0) break;
        const std::vector<uint8_t> done = answer_group(e, hidden, first, some, question, answers);
        if (done.empty()) {  // the others are taken to be alike
            *expensive = true;
            break;
        }
        for (int64_t q = 0; q < some; ++q)
            if (!done[q]) left.push_back(first + q);
        first += some;
        if (2 * std::accumulate(done.begin(), done.end(), int64_t{0}) < some) break;  // as here
    }
    for (; first < count; ++first) left.push_back(first);
    return left;
}

}  // namespace headlong
