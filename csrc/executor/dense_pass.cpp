// Every row in float64: what is left when intervals cannot help (ties all over, logits beyond float32). All queries that
// come here share one pass over the rows.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "executor/largest.h"
#include "executor/verbs.h"
#include "kernels/any_rows.h"
#include "runtime/pool.h"
#include "runtime/shared_work.h"

namespace headlong {
namespace {

constexpr int64_t kMostDensePieces = 64, kLeastPiece = 1024;
constexpr int64_t kWideBytes = 1 << 17;  // of rows in float64 at once, a part of the second cache

struct Better {
    const TrueOrder* order = nullptr;
    bool operator()(const Scored& a, const Scored& b) const { return (*order)(a, b); }
};

// What a piece of the rows says of one query.
struct Own {
    double shift = -kInf, sum = 0, moment = 0;  // of exp(f - shift), and of f - shift times that
    Largest<Scored, Better> best;
};

// Adds the exponentials of some classes, `equal` where they all have one logit; returns the largest logit, or -inf where none is there.
double add_exps(const Executor& e, const Question& question, const double* z, int64_t count, bool equal, Own& own) {
    if (equal) {
        own.shift = e.linked(z[0]) * question.beta;
        own.sum += static_cast<double>(count);
        return z[0];
    }
    double f[kBlock], top = -kInf, most = -kInf;
    for (int64_t i = 0; i < count; ++i) {
        f[i] = z[i] == -kInf ? z[i] : e.linked(z[i]) * question.beta;
        top = std::max(top, f[i]);
        most = std::max(most, z[i]);
    }
    if (top == -kInf) return top;
    if (top > own.shift) {
        const double fade = own.shift == -kInf ? 0 : std::exp(own.shift - top);
        own.moment = fade > 0 ? (own.moment + own.sum * (own.shift - top)) * fade : 0;
        own.sum *= fade;
        own.shift = top;
    }
    if (question.functional == nullptr) {
        own.sum += e.kernels->sum_exps(f, count, own.shift);
        return most;
    }
    for (int64_t i = 0; i < count; ++i) {
        const double mass = std::exp(f[i] - own.shift);
        own.sum += mass;
        if (mass > 0) own.moment += mass * (f[i] - own.shift);
    }
    return most;
}

}  // namespace

// A logit's error moves it by p |log p + entropy| times that.
const Functional kEntropy{[](double sum, double moment) { return std::max(0.0, std::log(sum) - moment / sum); }, [](double value) { return 1 + 2 * value; }};

// Runs of rows whose sums are joined in order: the same whatever the threads.
int64_t pieces(const Executor& e) { return std::max<int64_t>(1, std::min(kMostDensePieces, e.vocab / kLeastPiece)); }

// Whether a vector is nothing but zeros: all logits are their classes' biases, and no row has to be read.
bool all_zero(const Executor& e, const double* hidden) {
    return std::all_of(hidden, hidden + e.dim, [](double x) { return x == 0; });
}

// visit(piece, q, first, n, z) with the logits of `n` rows for rows[q]; masked classes are at -inf. The rows of a piece come
// in order, from one thread.
void every_logit(const Executor& e, const double* hidden, const std::vector<int64_t>& rows, const Question& question,
                           const Visit& visit) {
    const int64_t wide = (e.dim + kWide - 1) / kWide * kWide, row_size = row_bytes(e.kind, e.dim), all = pieces(e);
    const int n = static_cast<int>(rows.size());
    const int64_t at_once = std::max<int64_t>(4, std::min<int64_t>(kBlock, kWideBytes / (8 * wide)));
    Scratch<double> x(n * wide);
    std::memset(x.data(), 0, sizeof(double) * n * wide);
    for (int q = 0; q < n; ++q) std::copy_n(hidden + rows[q] * e.dim, e.dim, x.data() + q * wide);
    const bool nothing = std::all_of(rows.begin(), rows.end(), [&](int64_t row) { return all_zero(e, hidden + row * e.dim); });
    Turns<int64_t> next;
    run_parallel(static_cast<int>(std::min<int64_t>(question.threads, all)), [&](int) {
        Scratch<double> scratch(at_once * wide), z(n * at_once);
        for (int64_t piece = next++; piece < all; piece = next++) {
            const int64_t stop = e.vocab * (piece + 1) / all;
            for (int64_t first = e.vocab * piece / all; first < stop; first += at_once) {
                check_in();
                const int64_t count = std::min(at_once, stop - first);
                const char* from = static_cast<const char*>(e.weight) + first * row_size;
                if (nothing) std::fill_n(z.data(), n * at_once, 0.0);
                else if (n == 1) dot_rows(*e.kernels, from, e.kind, e.dim, nullptr, count, x.data(), z.data());
                else dot_block(*e.kernels, from, e.kind, e.dim, count, x.data(), n, scratch.data(), z.data(), at_once);
                for (int q = 0; q < n; ++q) {
                    double* some = z.data() + q * at_once;
                    const uint8_t* mask = question.mask;
                    if (mask != nullptr && question.mask_per_row) mask += rows[q] * e.vocab;
                    for (int64_t i = 0; i < count; ++i)
                        some[i] = mask == nullptr || mask[first + i] != 0 ? e.exact(some[i], first + i) : -kInf;
                    visit(piece, q, first, count, some);
                }
            }
        }
    });
}

// Float64 all the way: the dot products, a sum of positive terms, an exp and a link of a few roundings each.
double exact_error(const Executor& e, const double* hidden, double beta, double lse) {
    if (lse == -kInf) return 0;  // of no class
    return dot_error(e, hidden) * beta + 0x1p-52 * (static_cast<double>(e.vocab) + 16 + 4 * std::fabs(lse));
}

void finish(const Executor& e, const double* hidden, const std::vector<int64_t>& rows, const Question& question,
                      std::vector<Answer>& answers) {
    const int64_t all = pieces(e), k = question.k;
    const size_t n = rows.size();
    std::vector<TrueOrder> orders;
    for (const int64_t row : rows) orders.emplace_back(*e.kernels, e, hidden + row * e.dim);
    std::vector<Own> each(all * n);
    for (size_t i = 0; i < each.size(); ++i) each[i].best = Largest<Scored, Better>({&orders[i % n]});
    const bool equal = e.bias == nullptr && question.mask == nullptr &&
                       std::all_of(rows.begin(), rows.end(), [&](int64_t row) { return all_zero(e, hidden + row * e.dim); });
    every_logit(e, hidden, rows, question, [&](int64_t piece, int q, int64_t first, int64_t count, const double* z) {
        Own& own = each[piece * n + q];
        const double most = add_exps(e, question, z, count, equal, own);
        if (most == -kInf) return;
        // Ids rise within a piece: who only equals the worst of the best comes too late.
        const TrueOrder& order = orders[q];
        if (k == 0 || (own.best.full() && !order.may_beat(most, own.best.worst().z))) return;
        for (int64_t i = 0; i < count; ++i) {
            const Scored one{first + i, z[i]};
            if (z[i] > -kInf && (!own.best.full() || order(one, own.best.worst()))) own.best.add(one, static_cast<size_t>(k));
        }
        own.best.cut(static_cast<size_t>(k));
    });
    for (size_t q = 0; q < n; ++q) {
        Answer& answer = answers[rows[q]];
        double shift = -kInf, sum = 0, moment = 0;
        answer.best.clear();
        for (int64_t piece = 0; piece < all; ++piece) {
            const Own& own = each[piece * n + q];
            shift = std::max(shift, own.shift);
            answer.best.insert(answer.best.end(), own.best.kept().begin(), own.best.kept().end());
        }
        for (int64_t piece = 0; piece < all; ++piece) {
            const Own& own = each[piece * n + q];
            if (!(own.shift > -kInf)) continue;
            const double fade = std::exp(own.shift - shift);
            sum += own.sum * fade;
            moment += (own.moment + own.sum * (own.shift - shift)) * fade;
        }
        if (static_cast<int64_t>(answer.best.size()) > k) {
            std::nth_element(answer.best.begin(), answer.best.begin() + k, answer.best.end(), orders[q]);
            answer.best.resize(k);
        }
        std::sort(answer.best.begin(), answer.best.end(), orders[q]);
        orders[q].settle(answer.best);
        answer.lse = shift == -kInf ? -kInf : shift + std::log(sum);
        answer.error = exact_error(e, hidden + rows[q] * e.dim, question.beta, shift);
        if (question.functional != nullptr) {
            answer.value = sum > 0 ? question.functional->value(sum, moment) : 0;
            answer.error *= question.functional->lost(answer.value);
        }
        answer.proved = true;
        if (all_zero(e, hidden + rows[q] * e.dim)) continue;
        answer.rows += e.vocab;
        answer.bytes += static_cast<double>(e.vocab) * e.row_bytes() / static_cast<double>(n);
    }
}

}  // namespace headlong
