// What is asked of codes: one scan for all queries, then the ids and normalisers of each; a full scan for those that it leaves too open.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "codes/collect_hits.h"
#include "codes/collect_keys.h"
#include "codes/collect_masses.h"

namespace headlong {
namespace {

// Some queries of a call, what their scan collects, and what they share of what may fail: a half is for the ids, a quarter for the intervals of all
// classes, a quarter for bets; where draws go by mass, half of that for bets on their nuclei.
class CodeScan {
  public:
    CodeScan(const Codes& codes, const double* hidden, int64_t n, const Question& question)
        : codes_(codes), question_(question), all_(prepare_codes(codes, hidden, n, question.seed, question.threads)) {
        const int draws = question.rules != nullptr ? question.rules[0].n : 0;
        by_mass_ = draws > 0 && question.rules[0].goes_by_mass();
        const bool sums = std::isfinite(question.eps), near = question.k > 0 || draws > 0;
        kappa_ = kappa_of(static_cast<double>(question.k + draws), sums || by_mass_ ? question.delta / 2 : question.delta);
        if (question.k > 0) hits_.emplace(codes, question_, all_);
        if (draws > 0) keys_.emplace(codes, question_, all_, by_mass_);
        if (sums) masses_.emplace(codes, question_, all_);
        std::vector<ScanRadii> radii_of_group;
        for (const CodeGroup& group : all_.groups)
            if (near) radii_of_group.push_back(radii_of(codes, &all_.queries[group.first], group.n, kappa_));
        scan_tiles(codes, all_.groups, 1, question.threads, [&](int thread, size_t g, int64_t tile, const float* est) {
            alignas(64) float radii[kMostLanes];
            if (near) {
                codes.scan->radii(codes.tile(tile), codes.layout, radii_of_group[g], 0, radii, nullptr, nullptr);
                const GroupTile at{thread, all_.groups[g], tile, est, radii, radii_of_group[g].constant};
                if (hits_) hits_->take(at);
                if (keys_) keys_->take(at);
            }
            if (masses_) masses_->take(thread, g, tile, est);
        });
    }

    // False: a full scan is to answer.
    bool resolve(int64_t q, int threads, Answer& answer) {
        const Executor& e = *codes_.rows;
        const double delta = question_.delta;
        const QueryState state{codes_, all_, q, question_, threads, answer};
        answer.bytes = codes_.bytes() / static_cast<double>(all_.queries.size());  // of what all queries read, its share
        bool done = state.query.usable && (!hits_ || best_of_codes(state, kappa_, hits_->of(q), hits_->threshold(q)));
        if (done && keys_) {
            answer.draws.resize(keys_->keys.draws());
            done = keys_->keys.largest_of_all(q, state.most_scored(), [&](std::vector<Scored>& rows) { state.score(rows); }, answer.draws.data());
            if (!done) answer.draws.clear();
        }
        if (done && masses_) done = (question_.functional != nullptr ? entropy_of_codes : normaliser_of_codes)(state, masses_->of(q), by_mass_ ? delta / 8 : delta / 4);
        if (!masses_) {  // that of the classes in the answer: a lower bound
            answer.lse = -kInf;
            double sum = 0;
            for (const Scored& one : answer.best) sum += std::exp((e.linked(one.z) - e.linked(answer.best.front().z)) * question_.beta);
            if (sum > 0) answer.lse = e.linked(answer.best.front().z) * question_.beta + std::log(sum);
            answer.error = kInf;
        }
        if (done && by_mass_) draw_into_nucleus(state, *keys_, delta / 4, delta / 8);
        answer.proved = done && !(delta > 0);
        answer.bytes += static_cast<double>(answer.rows) * e.row_bytes();
        return done;
    }

  private:
    const Codes& codes_;
    const Question question_;
    const PreparedCodes all_;
    bool by_mass_;
    double kappa_;
    std::optional<HitCollector> hits_;
    std::optional<TileKeys> keys_;
    std::optional<MassCollector> masses_;
};

// The queries that are left, by a full scan.
void scan_fully(const Codes& codes, const double* hidden, const std::vector<int64_t>& left, const Question& question, std::vector<Answer>& answers) {
    if (left.empty()) return;
    if (question.rules != nullptr && question.k == 0 && std::isinf(question.eps)) return;  // who asked reads the rows for these
    SomeRows some(hidden, left, question, codes.rows->dim, codes.rows->vocab);
    some.question.rules = nullptr;
    SomeRows::put_back(ask(*codes.rows, some.hidden.data(), static_cast<int64_t>(left.size()), some.question), left, answers);
}

}  // namespace

std::vector<Answer> ask(const Codes& codes, const double* hidden, int64_t n, const Question& question) {
    const Executor& e = *codes.rows;
    std::vector<Answer> answers(n);
    if (n == 0) return answers;
    std::vector<int64_t> left(n);
    if (4 * question.k > e.vocab) {
        std::iota(left.begin(), left.end(), 0);
    } else {
        const bool by_mass = question.rules != nullptr && question.rules[0].goes_by_mass();
        const int64_t tile = (by_mass ? kTile * sizeof(float) : 0) + (std::isfinite(question.eps) ? MassCollector::bytes(question) : 0);
        const int64_t at_once = std::max<int64_t>(kMostLanes, (by_mass ? kHeldBytes / 2 : kHeldBytes) / (codes.count * tile + 8 * codes.width) / kMostLanes * kMostLanes);
        left = in_groups(
            n, at_once, question.threads,
            [&](int64_t first, int64_t count) {
                Question part = question;
                if (question.mask != nullptr && question.mask_per_row) part.mask += first * e.vocab;
                if (question.rules != nullptr) part.rules += first;
                return CodeScan(codes, hidden + first * e.dim, count, part);
            },
            [&](CodeScan& scan, int64_t row, int64_t q, int threads) { return scan.resolve(q, threads, answers[row]); });
    }
    scan_fully(codes, hidden, left, question, answers);
    return answers;
}

}  // namespace headlong
