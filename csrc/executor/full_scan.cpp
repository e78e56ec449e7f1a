// A full scan: every row in float32 for up to 64 queries at once, the intervals' sums for the normaliser, and the classes whose upper ends
// reach a threshold, of which the best are scored in float64. What float32 cannot decide (ties all over, logits beyond it) goes to
// executor/dense_pass.cpp.
#include "executor/full_scan.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

#include "executor/largest.h"
#include "executor/verbs.h"

namespace headlong {
namespace {

constexpr double kSumError = 0x1p-16;  // relative: float sums and exponentials of a scan
constexpr float kLowest = -std::numeric_limits<float>::max();

// Sums of exp(link(z) * beta - shift) over some classes.
struct Masses {
    double shift = -kInf;
    Kernels::Sums sums{0, 0, 0};

    // On a common shift, the larger of the two.
    void join(double other_shift, const Kernels::Sums& more) {
        const double top = std::max(shift, other_shift);
        if (top == -kInf) return;
        const double fade = std::exp(shift - top), here = std::exp(other_shift - top);
        sums.low = sums.low * fade + more.low * here;
        sums.high = sums.high * fade + more.high * here;
        sums.centre = sums.centre * fade + more.centre * here;
        shift = top;
    }
};

// What one thread gathered for one query.
struct Part {
    Largest<float, std::greater<float>> best;  // the k largest lower ends
    std::vector<Hit> reached;                 // the threshold of their time
};

class Scan {
  public:
    Scan(const Executor& e, const double* hidden, std::vector<int64_t> some, const Question& question)
        : e_(e), hidden_(hidden), rows_(std::move(some)), question_(question), n_(static_cast<int>(rows_.size())), x_(n_ * query_stride(e.dim)), parts_(n_ * question.threads),
          pieces_(n_ * scan_pieces(e)), threshold_(n_), undecided_(n_) {
        for (int q = 0; q < n_; ++q) {
            const int64_t stride = query_stride(e.dim);
            std::fill(std::copy_n(hidden_of(q), e.dim, x_.data() + q * stride), x_.data() + (q + 1) * stride, 0.f);
            radius_.push_back(radius_of_rows(e, hidden_of(q)));
            threshold_[q].store(kLowest);
            // Infinity times zero is none, beside a row of zeros.
            undecided_[q].store(!(radius_.back() < std::numeric_limits<float>::infinity()));
        }
        scan_rows(e_, {e_.weight, e_.kind, e_.dim, e_.base}, x_.data(), n_, question_.threads, [&](int thread, int64_t piece, int64_t first, int64_t n, float* est) {
            for (int q = 0; q < n_; ++q)
                if (!undecided_[q].load(std::memory_order_relaxed) && !gather(q, thread, piece, first, n, est + q * kChunk)) undecided_[q].store(true);
        });
    }

    // False: float64 is to decide.
    bool resolve(int q, int threads, Answer& answer) {
        answer.bytes += static_cast<double>(e_.vocab) * e_.row_bytes() / n_;
        if (undecided_[q].load()) return false;
        std::vector<Hit> hits;
        if (question_.k > 0) {
            const TrueOrder order(*e_.kernels, e_, hidden_of(q));
            const BestOfHits of{order, question_.k, answer.best, [&](std::vector<Scored>& rows) {
                score(e_, hidden_of(q), rows, threads);
                answer.rows += static_cast<int64_t>(rows.size());
                answer.bytes += static_cast<double>(rows.size()) * e_.row_bytes();
            }};
            hits = candidates(q);
            const size_t first = of.first(hits);
            const auto most = std::max(static_cast<int64_t>(kMostScored * static_cast<double>(e_.vocab)), 2 * question_.k);
            if (first > 0 && !of.rest(hits, first, most, at_once(question_.k), [&] { return answer.best.back().z; })) return false;
        }
        Interval lse = normaliser(q, hits, answer.best);
        lse.error += dot_error(e_, hidden_of(q)) * question_.beta;
        answer.lse = lse.value;
        answer.error = lse.error;
        answer.proved = true;
        return lse.error <= question_.eps;
    }

  private:
    const double* hidden_of(int q) const { return hidden_ + rows_[q] * e_.dim; }

    // Takes one chunk of estimates. False: they are no numbers.
    bool gather(int q, int thread, int64_t piece, int64_t first, int64_t n, float* est) {
        float rad[kChunk], lower[kChunk];
        bool finite = true;
        const float top = largest_estimate(e_, question_, rows_[q], first, n, est, &finite);
        if (!finite) return false;
        if (top == -std::numeric_limits<float>::infinity()) return true;
        const float most = radii_of_rows(e_, radius_[q], first, n, rad);
        const double shift = static_cast<float>(e_.linked(top) * question_.beta);
        if (!(std::fabs(shift) < kMostShift)) return false;
        Kernels::Sums here{0, 0, 0};
        e_.kernels->interval_sums(est, rad, n, most, e_.link, static_cast<float>(question_.beta), static_cast<float>(shift), &here);
        pieces_[q * scan_pieces(e_) + piece].join(shift, here);
        const auto k = static_cast<size_t>(question_.k);
        std::atomic<float>& threshold = threshold_[q];
        if (k == 0 || top + most < threshold.load(std::memory_order_relaxed)) return true;
        Part& part = parts_[q * question_.threads + thread];
        const int64_t above = e_.kernels->lower_above(est, rad, n, part.best.full() ? part.best.worst() : kLowest, lower);
        for (int64_t i = 0; i < above; ++i)
            if (!part.best.full() || lower[i] > part.best.worst()) part.best.add(lower[i], k);
        part.best.cut(k);
        if (part.best.full()) raise_to(threshold, part.best.worst());
        int32_t ids[kChunk];
        float kept[kChunk], upper[kChunk];
        const int64_t came = e_.kernels->candidates(est, rad, n, threshold.load(std::memory_order_relaxed), static_cast<int32_t>(first), ids, kept, upper);
        for (int64_t i = 0; i < came; ++i) part.reached.push_back({ids[i], kept[i], upper[i]});
        return true;
    }

    // Which classes may be among the k best: the same whichever thread came first.
    std::vector<Hit> candidates(int q) const {
        const Part* parts = &parts_[q * question_.threads];
        std::vector<float> lowers;
        for (int t = 0; t < question_.threads; ++t) lowers.insert(lowers.end(), parts[t].best.kept().begin(), parts[t].best.kept().end());
        float floor = threshold_[q].load();
        const int64_t k = question_.k;
        if (static_cast<int64_t>(lowers.size()) >= k) {
            std::nth_element(lowers.begin(), lowers.begin() + (k - 1), lowers.end(), std::greater<float>());
            floor = std::max(floor, lowers[k - 1]);
        }
        std::vector<Hit> all;
        for (int t = 0; t < question_.threads; ++t)
            std::copy_if(parts[t].reached.begin(), parts[t].reached.end(), std::back_inserter(all), [&](const Hit& one) { return one.upper >= floor; });
        return all;
    }

    // From the interval of every class. The point is the sum at the estimates, which is closer than the middle of the interval, unless eps
    // asks for the middle. What is among the best adds its exact term instead.
    Interval normaliser(int q, const std::vector<Hit>& thought, const std::vector<Scored>& best) const {
        const double beta = question_.beta;
        Masses masses;
        const int64_t pieces = scan_pieces(e_);
        for (int64_t p = 0; p < pieces; ++p) masses.join(pieces_[q * pieces + p].shift, pieces_[q * pieces + p].sums);
        if (masses.shift == -kInf) return {-kInf, 0};
        double shift = masses.shift;
        for (const Scored& s : best) shift = std::max(shift, e_.linked(s.z) * beta);
        const double fade = std::exp(masses.shift - shift), slop = kSumError * masses.sums.high * fade;
        double low = masses.sums.low * fade - slop, high = masses.sums.high * fade + slop, centre = masses.sums.centre * fade, exact = 0;
        // The sums hold the ends of what leaves them as float32 had them, up to `off` away in the exponent; an end beyond exp(87) of its
        // chunk made them infinite.
        const double off = float_error(e_, shift, beta), less = std::exp(-off), more = std::exp(off);
        for (const Scored& s : best) {
            const auto at = std::find_if(thought.begin(), thought.end(), [&](const Hit& hit) { return hit.id == s.id; });
            const double rad = static_cast<double>(at->upper) - at->est, f = e_.linked(at->est), wide = static_cast<double>(e_.link.a) * rad;
            const bool table = e_.link.form == LinkForm::table;
            low -= std::exp((table ? f - wide : e_.linked(at->est - rad)) * beta - shift) * more;
            high -= std::exp((table ? f + wide : e_.linked(at->est + rad)) * beta - shift) * less;
            centre -= std::exp(f * beta - shift);
            exact += std::exp(e_.linked(s.z) * beta - shift);
        }
        low = exact + std::max(low, 0.0);
        high = exact + std::max(high, 0.0);
        centre += exact;
        double error = (low > 0 ? 0.5 * std::log(high / low) : kInf) + off;
        if (!(error < 20)) return {shift, kInf};  // an interval that wide, or no number, says nothing
        const double bottom = std::log(low), top = std::log(high), spare = question_.eps - off - 1e-9;
        double point = 0.5 * (bottom + top);
        if (centre > low && centre < high && error < question_.eps) point = std::min(std::max(std::log(centre), top - spare), bottom + spare);
        error = std::max(top - point, point - bottom) + off;
        return {shift + point, error};
    }

    const Executor& e_;
    const double* hidden_;
    const std::vector<int64_t> rows_;
    const Question& question_;
    int n_;
    Scratch<float> x_;
    std::vector<float> radius_;
    std::vector<Part> parts_;      // [query][thread]
    std::vector<Masses> pieces_;   // [query][piece]
    std::vector<std::atomic<float>> threshold_;  // what a class has to reach
    std::vector<std::atomic<bool>> undecided_;
};

}  // namespace

float largest_estimate(const Executor& e, const Question& question, int64_t row, int64_t first, int64_t n, float* est, bool* finite) {
    const int64_t there = std::min(n, e.vocab - first);
    const uint8_t* mask = question.mask == nullptr ? nullptr : question.mask + (question.mask_per_row ? row * e.vocab : 0) + first;
    if (there == n) return e.kernels->largest(est, mask, n, finite);
    uint8_t edge[kChunk] = {};
    if (mask == nullptr) std::fill_n(edge, there, uint8_t{1});
    else std::copy_n(mask, there, edge);
    std::fill(est + there, est + n, 0.f);  // padding is not an estimate
    return e.kernels->largest(est, edge, n, finite);
}

// A product is off by a rounding for each coordinate of one of its sums, and by some for the sum of these, whose number is in 144 with
// room to spare; every product that float32 flushes towards zero is far below the 2^-100 of each radius.
float radius_of_rows(const Executor& e, const double* hidden) {
    const double length = std::sqrt(std::inner_product(hidden, hidden + e.dim, hidden, 0.0));
    const double exact = length * (static_cast<double>(e.dim) / e.kernels->lanes + 144) * 0x1p-24 * (1 + 0x1p-18);
    const float near = static_cast<float>(exact);
    return static_cast<double>(near) < exact ? std::nextafterf(near, std::numeric_limits<float>::infinity()) : near;
}

std::vector<Answer> ask(const Executor& e, const double* hidden, int64_t count, const Question& question) {
    if (e.preview.budget > 0) return ask_preview(e, hidden, count, question);
    std::vector<Answer> answers(count);
    std::vector<int64_t> rows, left;
    for (int64_t row = 0; row < count; ++row) {  // vectors of zeros, which pad a batch, tie all classes but for their biases
        answers[row].dense = true;
        (question.functional != nullptr || all_zero(e, hidden + row * e.dim) ? left : rows).push_back(row);
    }
    const std::vector<int64_t> open = in_groups(
        static_cast<int64_t>(rows.size()), kScanQueries, question.threads,
        [&](int64_t first, int64_t n) { return Scan(e, hidden, {rows.begin() + first, rows.begin() + first + n}, question); },
        [&](Scan& scan, int64_t i, int64_t q, int threads) { return scan.resolve(static_cast<int>(q), threads, answers[rows[i]]); });
    for (const int64_t i : open) left.push_back(rows[i]);
    if (!left.empty()) finish(e, hidden, left, question, answers);
    return answers;
}

}  // namespace headlong
