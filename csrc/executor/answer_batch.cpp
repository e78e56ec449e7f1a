// From a call to its answers: queries go in groups that look together, each is resolved by what the look found, and those that are better read densely share a pass over the rows.
#include <algorithm>
#include <numeric>

#include "executor/look_costs.h"
#include "executor/verbs.h"
#include "kernels/any_rows.h"
#include "runtime/pool.h"
#include "runtime/shared_work.h"
#include "runtime/trace.h"

namespace headlong {
namespace {

constexpr double kSmallBytes = 1 << 18;  // below this one thread is done before another wakes
constexpr double kCachedBytes = 4 << 20;  // of codes that are cheap to read a second time
constexpr int64_t kKeptBytes = 8 << 20;  // estimates are kept where they stay in the cache, or where they will be needed
constexpr size_t kMostSampled = 4;        // queries that speak for a group of four times as many or more
constexpr double kDearer = 1.5;          // than a query's part was thought to be, of a dense pass
constexpr size_t kMostAlone = 4;         // queries of a batch that are looked at one by one
constexpr size_t kQueriesPerSample = 32, kLeastSampled = 4;  // of a batch, those that are answered before the others are looked at
constexpr int kRemembered = 16;          // groups whose estimates are kept, since most queries of one wanted theirs
constexpr size_t kLeastWeighed = 5;  // queries of a batch whose first ones' costs count: of fewer, one is too much of all

// Queries that come together are often alike. Where some of them, from all over the batch, are better read densely, so are the
// others taken to be, and not even a sample is paid for them.
bool all_finish_densely(const Executor& e, const double* hidden, const std::vector<int64_t>& rows, const Question& question, int threads,
                        std::vector<Answer>& answers) {
    const size_t sampled = std::min(kMostSampled, rows.size() / 4);
    if (sampled < 2 || e.budget > 0) return false;
    std::vector<int64_t> some;
    for (size_t i = 0; i < sampled; ++i) some.push_back(rows[i * rows.size() / sampled]);
    Look look = start_look(e, e.preview, hidden, some, threads);
    look_at_all(e, look, question, true);
    for (size_t i = 0; i < sampled; ++i) answers[some[i]].bytes += look.bytes[i];
    return std::all_of(look.finish_densely.begin(), look.finish_densely.end(), [](const std::atomic<int>& finish_densely) { return finish_densely.load() != 0; });
}

struct Looked {
    double bytes;
    int wanted;  // queries that asked for their estimates once more, whether or not these were kept
};

// One group of queries: the look, and what became of each.
Looked look_and_resolve(const Executor& e, const Source& source, const double* hidden, const std::vector<int64_t>& rows,
                      const Question& question, bool keep, size_t together, int threads, const Resolve& resolve,
                      std::vector<Status>& status, std::vector<Answer>& answers) {
    Look look = start_look(e, source, hidden, rows, threads);
    look.together = static_cast<double>(together);
    const int n = look.prepared.n;
    if (keep) look.est.resize(static_cast<size_t>(n) * e.padded);
    if (n == 1 && question.keep) look.rad.resize(e.padded);
    look_at_all(e, look, question);
    const auto resolve_one = [&](int q, int threads) {
        Answer& answer = answers[look.rows[q]];
        answer.bytes += look.bytes[q];
        if (look.finish_densely[q].load() == 0) status[q] = resolve(look, q, threads, answer);
    };
    const double bytes = std::accumulate(look.bytes.begin(), look.bytes.end(), 0.0);
    Turns<int> next;
    if (n == 1) resolve_one(0, threads);
    else run_parallel(std::min(threads, n), [&](int) {
        for (int q = next++; q < n; q = next++) resolve_one(q, 1);
    });
    return {bytes, static_cast<int>(std::count(look.wanted.begin(), look.wanted.end(), 1))};
}

double beside_looks(const Executor& e, const std::vector<int64_t>& rows, const std::vector<Answer>& answers) {
    double cost = 0;
    for (int64_t row : rows) cost += cost_beside_look(e, answers[row]);
    return cost;
}

// Whether some queries of a batch, by what was counted, cost more than their part of a dense pass: their look, which was so many
// bytes, what they took beside it, and that pass for those that it served nothing. Where a look alone costs more, it was asked for.
// `step`: how many of the others will look together.
bool costs_more_than_rows(const Executor& e, double queries, double in_vain, double look_bytes, double beside, double together, int64_t step) {
    const double dense = dense_cost(e, together), look = look_cost(e), classes = static_cast<double>(e.vocab);
    if (!(look < dense)) return false;
    const double looks = queries * (look + codes_cost(e, static_cast<double>(step))) * look_bytes / e.preview.bytes;
    return (looks + in_vain * dense) * classes + beside > queries * dense * classes;
}

}  // namespace

void over_groups(const Executor& e, const double* hidden, const std::vector<int64_t>& rows, const Question& question, bool dense_only,
                 const Resolve& resolve, const Finish& finish, std::vector<Answer>& answers) {
    const bool use_preview = e.has_preview && !dense_only && !(question.weighs_first && looks_cost_more(e, rows.size()));
    const Source& source = use_preview ? e.preview : e.dense;
    const int threads = source.bytes * static_cast<double>(rows.size()) < kSmallBytes ? 1 : question.threads;
    const int64_t affordable = std::max<int64_t>(1, kKeptBytes / (e.padded * 4));
    const bool always = question.keep || static_cast<int64_t>(rows.size()) <= affordable;
    const auto group_size = [&](bool kept) { return kept ? std::min<int64_t>(kGroupQueries, affordable) : int64_t{kGroupQueries}; };
    const bool remembers = use_preview == e.has_preview;  // what a look served nothing is read densely, all of it at once
    // Some of a batch are answered first, with all that they take: the others are read as was cheaper for these.
    // That reads the codes twice, which few queries do not make up for where no cache holds these.
    const bool apart = use_preview && rows.size() >= (e.preview.bytes <= kCachedBytes ? kLeastSampled : kQueriesPerSample);
    const size_t first = apart ? rows.size() / kQueriesPerSample + 1 : rows.size();
    const bool weighed = question.weighs_first && !question.keep && rows.size() >= kLeastWeighed && first < rows.size() && static_cast<int64_t>(first) <= affordable;
    bool densely = false;
    std::vector<int64_t> kept_later, finish_densely;
    for (size_t start = 0, stop = 0; start < rows.size(); start = stop) {
        const bool keep = always || (remembers && e.keeping.load() > 0);
        stop = std::min({rows.size(), start + static_cast<size_t>(group_size(keep)), start == 0 ? first : rows.size()});
        const std::vector<int64_t> some(rows.begin() + start, rows.begin() + stop);
        // What was looked at in vain cannot be taken back: where it was for most so far, the others are read densely at once.
        if (use_preview && (densely || 2 * finish_densely.size() > start || all_finish_densely(e, hidden, some, question, threads, answers))) {
            finish_densely.insert(finish_densely.end(), some.begin(), some.end());
            continue;
        }
        std::vector<Status> status(some.size(), Status::finish_densely);
        const bool samples = weighed && start == 0, kept = keep || samples;
        const double before = samples ? beside_looks(e, some, answers) : 0;
        const auto [look_bytes, wanted] = look_and_resolve(e, source, hidden, some, question, kept, rows.size(), threads, resolve, status, answers);
        const int n = static_cast<int>(some.size());
        if (samples)
            densely = costs_more_than_rows(e, n, static_cast<double>(std::count(status.begin(), status.end(), Status::finish_densely)), look_bytes,
                                           beside_looks(e, some, answers) - before, static_cast<double>(rows.size()), group_size(2 * wanted > n));
        for (int q = 0; q < n; ++q) {
            if (status[q] == Status::keep) kept_later.push_back(some[q]);
            if (status[q] == Status::finish_densely) finish_densely.push_back(some[q]);
            answers[some[q]].dense = !use_preview;
        }
        // Where estimates are not kept unasked, the next groups do as most queries of this one would have liked.
        if (always || !remembers) continue;
        if (2 * wanted > n) e.keeping.store(kRemembered);
        else if (keep && e.keeping.load() > 0) e.keeping.fetch_sub(1);
    }
    if (!kept_later.empty()) {
        Question again = question;
        again.keep = true;
        over_groups(e, hidden, kept_later, again, dense_only, resolve, finish, answers);
    }
    if (finish_densely.empty()) return;
    if (use_preview) {
        // Each was judged by its part of a pass that all share. Few of many would pay for all of it: they are looked at once more, as
        // the smaller batch that they are, or alone.
        const auto part = [&](size_t n) { return dense_cost(e, static_cast<double>(n)); };
        const bool few = part(finish_densely.size()) > kDearer * part(rows.size()) + look_cost(e);
        if (few && finish_densely.size() <= kMostAlone)
            for (int64_t row : finish_densely) over_groups(e, hidden, {row}, question, false, resolve, finish, answers);
        else
            over_groups(e, hidden, finish_densely, question, !few, resolve, finish, answers);
        return;
    }
    for (int64_t row : finish_densely) answers[row].dense = true;
    finish(finish_densely);
}

namespace {

// Vectors of zeros, which pad a batch, tie all classes but for their biases: no look tells these apart, and one would drag the
// others into a dense pass. Returns the others.
std::vector<int64_t> answer_zeros(const Executor& e, const double* hidden, const std::vector<int64_t>& rows, const Question& question,
                                  std::vector<Answer>& answers) {
    std::vector<int64_t> zeros, others;
    for (const int64_t row : rows) (all_zero(e, hidden + row * e.dim) ? zeros : others).push_back(row);
    for (const int64_t row : zeros) answers[row].dense = true;
    if (!zeros.empty()) finish(e, hidden, zeros, question, answers);
    return others;
}

}  // namespace

std::vector<Answer> ask(const Executor& e, const double* hidden, int64_t count, const Question& question,
                                  bool dense_only) {
    std::vector<Answer> answers(count);
    std::vector<int64_t> rows(count);
    std::iota(rows.begin(), rows.end(), 0);
    if (e.has_preview && e.budget == 0 && !dense_only) rows = answer_zeros(e, hidden, rows, question, answers);
    if (rows.empty()) return answers;
    Question asked = question;
    asked.weighs_first = e.budget == 0;
    asked.keep = question.keep || (e.budget > 0 && e.has_preview && !dense_only);
    over_groups(
        e, hidden, rows, asked, dense_only,
        [&](Look& look, int q, int threads, Answer& answer) {
            return by_budget(e, look) ? resolve_budget(e, look, q, question, threads, answer)
                             : resolve(e, look, q, question, threads, answer);
        },
        [&](const std::vector<int64_t>& left) { finish(e, hidden, left, question, answers); },
        answers);
    return answers;
}

constexpr int64_t kCompared = 4096;  // logits of one query that a caller may put in order

void logits(const Executor& e, const double* hidden, int64_t count, const int64_t* ids, int64_t m, int threads,
                      double* out) {
    Turns<int64_t> next;
    const int64_t grain = std::max<int64_t>(1, 256 / std::max<int64_t>(1, m));
    run_parallel(count * m * e.dim < 65536 ? 1 : threads, [&](int) {
        for (int64_t start = next.fetch_add(grain); start < count; start = next.fetch_add(grain))
            for (int64_t b = start; b < std::min(count, start + grain); ++b) {
                double* z = out + b * m;
                dot_rows(*e.kernels, e.weight, e.kind, e.dim, ids + b * m, m, hidden + b * e.dim, z);
                for (int64_t i = 0; e.bias != nullptr && i < m; ++i) z[i] += e.bias[ids[b * m + i]];
                if (m == 1 || m > kCompared) continue;
                std::vector<int64_t> falling(m);
                std::iota(falling.begin(), falling.end(), 0);
                std::sort(falling.begin(), falling.end(), [&](int64_t i, int64_t j) { return z[i] > z[j]; });
                TrueOrder(*e.kernels, e, hidden + b * e.dim).settle(m, [&](int64_t i) { return ids[b * m + falling[i]]; }, [&](int64_t i) -> double& { return z[falling[i]]; });
            }
    });
}

}  // namespace headlong
