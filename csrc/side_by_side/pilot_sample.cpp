// What the pass needs to know beforehand, from every eighth piece of the classes: the threshold, and about how large the sum is.
#include <algorithm>
#include <numeric>

#include "normaliser/betting.h"
#include "runtime/pool.h"
#include "runtime/shared_work.h"
#include "side_by_side/state.h"

namespace headlong {
namespace {

constexpr float kMostGap = 1e30f;  // in the sums of floats, where no bet wants less

// How many classes may be reported to a query before it is better off alone: as many as would be scored there, and as many again
// for points, unless the promise can never want them: draws_for a gap as wide as the whole sum and terms at its ends.
double most_reported(const Executor& e, const Question& question) {
    const double rows = e.share * static_cast<double>(e.vocab) + 4096;
    if (!(question.eps < kInf)) return rows;
    return rows + std::min(rows, kMore * draws_for(2 / question.delta, std::min(question.eps, 0.5), 1));
}

// The likeliest classes of the sample, one of a run of 16 at most, are scored: the worst of k of them is a threshold, the best one the
// shift of all exponents.
void start_query(const Executor& e, BatchState& batch, const Question& question, int q) {
    const int64_t lanes = batch.lanes, runs = batch.sample * (kLanePiece / kLaneRun);
    const size_t wanted = static_cast<size_t>(std::max<int64_t>(8, question.k));
    std::vector<std::pair<float, int64_t>> best(runs);
    for (int64_t r = 0; r < runs; ++r) best[r] = {-batch.largest[r * lanes + q], r};
    std::nth_element(best.begin(), best.begin() + (wanted - 1), best.end());
    std::vector<Scored>& rows = batch.sampled[q];
    for (size_t i = 0; i < wanted; ++i) {
        const int64_t at = best[i].second * kLaneRun, piece = batch.order[at / kLanePiece], id = piece * kLanePiece + at % kLanePiece;
        if (!(std::fabs(best[i].first) < 1e30f)) return rows.clear();  // left to the others' way
        int64_t found = 0;
        while (found + 1 < kLaneRun && batch.est[(at + found) * lanes + q] != -best[i].first) ++found;
        rows.push_back({id + found, 0});
    }
    score(e, &batch.look.hidden[q * e.dim], rows, 1);
    std::vector<double> z;
    for (const Scored& s : rows) z.push_back(s.z);
    std::sort(z.begin(), z.end(), std::greater<double>());
    if (!(std::fabs(z[0]) < 1e30)) return rows.clear();
    batch.shift[q] = static_cast<float>(e.linked(z[0]) * question.beta);
    batch.octaves[q] = static_cast<float>((batch.shift[q] - e.link_b * question.beta) * 1.4426950408889634);
    if (question.k > 0) {
        const float below = static_cast<float>(z[question.k - 1]);
        batch.tau[q] = below > z[question.k - 1] ? std::nextafterf(below, -std::numeric_limits<float>::infinity()) : below;
    }
    batch.key[q] = key_of(&batch.look.hidden[q * e.dim], e.dim, question.seed);
}

// About how large the sum is, and so what a row is worth: a gap adds gap * price to the draws. Words are often in the order of their
// frequency, so that the pieces between two of the sample are taken to lie between them. A guess that is too low costs points.
void aim_query(const Executor& e, BatchState& batch, const Question& question, int q, std::vector<double>& sums) {
    if (batch.sampled[q].empty()) return;
    double fixed = float_error(e, batch.shift[q], question.beta) + dot_error(e, &batch.look.hidden[q * e.dim]);
    double square = 0;
    for (int64_t j = 0; j < e.dim; ++j) {
        const double x = batch.look.hidden[q * e.dim + j];
        batch.floats[q * e.dim + j] = static_cast<float>(x);
        square += x * x;
    }
    const double narrow = float_unit(e.dim) * e.most_norm * std::sqrt(square) * e.link_a * question.beta;
    batch.narrow[q] = narrow < 0.1 * question.eps;
    if (batch.narrow[q]) fixed += narrow;
    batch.ask.slop = std::max(batch.ask.slop, static_cast<float>(0x1p-11 + 2 * fixed));
    double all = 0;
    for (const Scored& s : batch.sampled[q]) {
        const double known = std::exp(e.linked(s.z) * question.beta - batch.shift[q]);
        double& sum = sums[s.id / kLanePiece / kEvery];
        sum = std::max(0.0, sum - known);
        all += known;
    }
    for (int64_t p = 0; p < batch.pieces; ++p) {
        const double here = sums[p / kEvery], next = sums[std::min(batch.sample - 1, p / kEvery + 1)];
        const double part = static_cast<double>(p % kEvery) / static_cast<double>(kEvery);
        all += here > 0 && next > 0 ? 0.7 * here * std::pow(next / here, part) : 0;
    }
    const double price = (std::log(2 / question.delta) + 0.8) / all;
    batch.fixed[q] = fixed;
    batch.aim[q] = question.eps - fixed;
    if (!(batch.aim[q] > 0)) return;
    batch.theta[q] = static_cast<float>(batch.aim[q] / price / kMore);
    batch.edge[q] = batch.theta[q];
    batch.worth[q] = static_cast<float>(price / batch.aim[q]);
}

// The queries' numbers that a class is asked with: nothing yet.
void set_up(const Executor& e, BatchState& batch, const Question& question) {
    const int64_t lanes = batch.lanes;
    batch.pieces = (e.vocab + kLanePiece - 1) / kLanePiece;
    for (int64_t p = 0; p < batch.pieces; p += kEvery) batch.order.push_back(p);
    batch.sample = static_cast<int64_t>(batch.order.size());
    for (int64_t p = 0; p < batch.pieces; ++p)
        if (p % kEvery != 0) batch.order.push_back(p);
    batch.est.resize(batch.sample * kLanePiece * lanes);
    batch.largest.resize(batch.sample * (kLanePiece / kLaneRun) * lanes);
    for (Scratch<float>* each : {&batch.shift, &batch.octaves, &batch.tau, &batch.edge, &batch.worth, &batch.theta}) {
        each->resize(lanes);
        std::fill_n(each->data(), lanes, each == &batch.tau || each == &batch.edge ? std::numeric_limits<float>::infinity() : 0.f);
    }
    // Where no bet takes the widest gaps out of the sums, those go that a sum of floats would not hold.
    if (!(question.eps < kInf)) std::fill_n(batch.edge.data(), batch.n, kMostGap);
    const float closer = static_cast<float>(e.deeper[0].bytes * lanes), row = static_cast<float>(e.dim);
    batch.ask = {batch.n, batch.lanes, wants_sums(question), question.eps < kInf, e.link, static_cast<float>(question.beta), 0x1p-11f, 0.5f, 0.1f + closer / (40 * row),
                 batch.octaves.data(), batch.tau.data(), batch.edge.data(), batch.worth.data(), batch.theta.data()};
    batch.aim.assign(batch.n, 0);
    batch.fixed.assign(batch.n, 0);
    batch.key.assign(batch.n, 0);
    batch.narrow.assign(batch.n, 0);
    batch.floats.resize(batch.n * e.dim);
    batch.sampled.resize(batch.n);
    batch.most_reported = static_cast<int64_t>(most_reported(e, question));
}

}  // namespace

// Reads the sample, and says of every query what its classes are asked in the pass.
void read_sample(const Executor& e, BatchState& batch, const Question& question) {
    const int64_t lanes = batch.lanes, runs = kLanePiece / kLaneRun;
    set_up(e, batch, question);
    Turns<int64_t> next;
    run_parallel(batch.threads, [&](int) {
        for (int64_t s = next++; s < batch.sample; s = next++) {
            float* est = batch.est.data() + s * kLanePiece * lanes;
            scan_piece(e, batch, batch.order[s], est);
            const int64_t count = std::min(kLanePiece, e.vocab - batch.order[s] * kLanePiece);
            float* largest = batch.largest.data() + s * runs * lanes;
            std::fill_n(largest, runs * lanes, -std::numeric_limits<float>::infinity());
            e.kernels->batch_largest(est, count, batch.lanes, largest);
        }
    });
    Turns<int> turn;
    run_parallel(std::min(batch.threads, batch.n), [&](int) {
        for (int q = turn++; q < batch.n; q = turn++) start_query(e, batch, question, q);
    });
    if (!(question.eps < kInf)) return;
    Scratch<double> sums(batch.sample * lanes);
    std::fill_n(sums.data(), sums.size(), 0.0);
    next.store(0);
    run_parallel(batch.threads, [&](int) {
        for (int64_t s = next++; s < batch.sample; s = next++)
            e.kernels->batch_sums(batch.ask, batch.est.data() + s * kLanePiece * lanes,
                                std::min(kLanePiece, e.vocab - batch.order[s] * kLanePiece), batch.lanes, sums.data() + s * lanes);
    });
    for (int q = 0; q < batch.n; ++q) {
        std::vector<double> each(batch.sample);
        for (int64_t s = 0; s < batch.sample; ++s) each[s] = sums[s * lanes + q];
        aim_query(e, batch, question, q, each);
    }
}

// Estimates of a piece, [class][lanes].
void scan_piece(const Executor& e, const BatchState& batch, int64_t piece, float* est) {
    const int64_t first = piece * kLanePiece, stop = std::min(e.vocab, first + kLanePiece);
    const float* add = batch.terms.data() + batch.lanes;
    for (int64_t c = first; c < stop; c += kBlock) {
        const LaneRows rows{e.preview.codes + c * e.preview.words * 4, 0, c, std::min(kBlock, stop - c), nullptr, nullptr};
        e.kernels->batch_scan(rows, batch.first.data(), static_cast<int>(batch.first.size()), e.preview.base, add, batch.lanes,
                            est + (c - first) * batch.lanes);
    }
}

}  // namespace headlong
