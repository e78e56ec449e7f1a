#include "node_sums/search.h"

#include <algorithm>
#include <cmath>

#include "node_sums/median_order.h"

namespace headlong {
namespace {

constexpr double kRoom = 0.98;      // of eps: roundings of the sums have the rest
constexpr double kMostEps = 8;      // a larger one asks for no less
constexpr double kLost = 0x1p-39;   // of a variance, times the root of how many classes it is of: previews/sums/tree.py

struct Query {
    double y[NodeLayout::kMostDim + 1];  // scale * (hidden, 1)
    const double* hidden;
    double scale, off;  // off: how far a logit is rounded
};

// The mean of a node's logits, the ends of what they may be, and the ends of their variance.
struct Logits {
    double mean, low, high, least, most;
};

struct Ends {
    double lower, upper;
};

Logits logits_of(const NodeSums& s, const double* node, double count, const Query& q) {
    const int64_t dim = s.dim;
    double mean = 0, spread = 0, squares = 0;
    const double* covariance = node + s.at.spread;
    for (int64_t j = 0; j <= dim; ++j) {
        mean += node[j] * q.y[j];
        double row = 0;
        for (int64_t k = 0; k <= j; ++k) row += *covariance++ * q.y[k];
        spread += row * q.y[j];
        squares += covariance[-1] * q.y[j] * q.y[j];
    }
    double low = node[s.at.rest], high = node[s.at.rest + 1];
    for (int64_t j = 0; j < dim; ++j) {
        const double x = q.hidden[j] - node[s.at.level + j], a = node[s.at.low + j] * x, b = node[s.at.high + j] * x;
        low += std::min(a, b);
        high += std::max(a, b);
    }
    Logits z;
    z.mean = mean;
    z.low = std::min(low * q.scale, mean) - 2 * q.off;
    z.high = std::max(high * q.scale, mean);
    const double lost = kLost * std::sqrt(count) * static_cast<double>(dim + 1) * squares, widest = (z.high - mean) * (mean - z.low);
    z.least = std::min(std::max(spread - lost, 0.0), widest);
    z.most = std::min(std::max(spread + lost, 0.0), widest);
    return z;
}

// Of `count` numbers with this mean, variance and ends, the sum of exp(z - shift): the least has an atom at the low end, the largest
// one at the high end.
Ends ends_of(const Logits& z, double count, double shift) {
    const double above = z.high - z.mean, below = z.mean - z.low, a = above * above, b = below * below;
    Ends e{count * std::exp(z.low - shift), count * std::exp(z.high - shift)};
    if (a + z.most > 0) e.upper = count * (z.most * std::exp(z.high - shift) + a * std::exp(z.mean - z.most / above - shift)) / (z.most + a);
    if (b + z.least > 0) e.lower = count * (z.least * std::exp(z.low - shift) + b * std::exp(z.mean + z.least / below - shift)) / (z.least + b);
    return e;
}

// Numbers that are nearly the logits of a leaf's classes.
void score_leaf(const NodeSums& s, int64_t leaf, const Query& q, std::vector<double>* scored) {
    const int64_t stop = node_start(s.vocab, s.levels, leaf + 1);
    for (int64_t i = node_start(s.vocab, s.levels, leaf); i < stop; ++i) {
        const float* row = s.rows.data() + i * (s.dim + 1);
        double z = 0;
        for (int64_t j = 0; j <= s.dim; ++j) z += static_cast<double>(row[j]) * q.y[j];
        scored->push_back(z);
    }
}

// Both ends of the sum over nodes that are closed, and over classes that are scored, relative to exp(shift).
struct Total {
    double shift = -kInf, lower = 0, gap = 0;

    void raise(double to) {
        if (!(to > shift)) return;
        const double by = std::exp(shift - to);
        lower *= by, gap *= by, shift = to;
    }
};

struct Search {
    const NodeSums& s;
    const Query& q;
    double spread;  // gaps may be so much of the lower end
    Total total;
    std::vector<int64_t> open{0}, next;
    std::vector<Logits> logits;
    std::vector<Ends> ends;
    std::vector<double> scored;
    double bytes = 0;
    int64_t count = 0;  // what was added up

    void bound(int level) {
        const double* first = s.nodes.get() + ((int64_t{1} << level) - 1) * s.at.fields;
        logits.clear(), ends.clear();
        double shift = total.shift;
        for (int64_t node : open) {
            const double classes = static_cast<double>(node_start(s.vocab, level, node + 1) - node_start(s.vocab, level, node));
            const Logits z = logits_of(s, first + node * s.at.fields, classes, q);
            logits.push_back(z);
            const double below = z.mean - z.low;
            shift = std::max(shift, below > 0 ? z.mean + z.least / below : z.mean);
        }
        total.raise(shift);
        for (size_t i = 0; i < open.size(); ++i) {
            const double classes = static_cast<double>(node_start(s.vocab, level, open[i] + 1) - node_start(s.vocab, level, open[i]));
            ends.push_back(ends_of(logits[i], classes, total.shift));
        }
        bytes += static_cast<double>(open.size()) * static_cast<double>(s.at.fields) * 8;
        count += static_cast<int64_t>(open.size());
    }

    void close(const Ends& e) { total.lower += e.lower, total.gap += std::max(e.upper - e.lower, 0.0); }

    // Closes nodes whose gaps are small, and opens the others; true once all that are left are small together.
    bool narrow(int level) {
        double lower = total.lower, gap = 0;
        for (const Ends& e : ends) lower += e.lower, gap += e.upper - e.lower;
        const double room = spread * lower - total.gap;
        const bool done = gap <= room;
        const double share = room / (2 * static_cast<double>(open.size()));
        next.clear();
        for (size_t i = 0; i < open.size(); ++i) {
            if (done || ends[i].upper - ends[i].lower <= share) {
                close(ends[i]);
            } else if (level < s.levels) {
                next.push_back(2 * open[i]), next.push_back(2 * open[i] + 1);
            } else {
                score_leaf(s, open[i], q, &scored);  // a search ends here, or is given up
            }
        }
        open.swap(next);
        if (level == s.levels) bytes += static_cast<double>(scored.size()) * static_cast<double>(s.dim + 1) * 4;
        return done;
    }

    void add_scored() {
        if (scored.empty()) return;
        total.raise(*std::max_element(scored.begin(), scored.end()));
        for (double z : scored) total.lower += std::exp(z - total.shift);
        count += static_cast<int64_t>(scored.size());
    }
};

}  // namespace

bool sum_nodes(const NodeSums& s, const double* hidden, const SumsQuestion& question, Answer* answer) {
    Query q;
    q.hidden = hidden, q.scale = question.scale;
    double size = 12 * s.widest[s.dim];
    for (int64_t j = 0; j < s.dim; ++j) {
        q.y[j] = question.scale * hidden[j];
        size += s.widest[j] * std::fabs(hidden[j]);
    }
    q.y[s.dim] = question.scale;
    q.off = question.scale * size * static_cast<double>(8 * s.dim + 256) * 0x1p-53;
    const double eps = kRoom * (std::min(question.eps, kMostEps) - q.off - question.fixed);
    if (!(eps > 0)) return false;
    Search search{s, q, std::expm1(2 * eps), {}, {0}, {}, {}, {}, {}};
    bool given_up = false;
    for (int level = 0; level <= s.levels && !search.open.empty() && !given_up; ++level) {
        search.bound(level);
        if (search.narrow(level)) break;
        given_up = search.bytes > s.most;
    }
    if (!given_up) search.add_scored();
    answer->rows = static_cast<int64_t>(search.scored.size());
    answer->bytes = search.bytes;
    if (given_up || !(search.total.lower > 0)) return false;
    const double half = 0.5 * std::log1p(search.total.gap / search.total.lower);
    answer->lse = question.shift + search.total.shift + std::log(search.total.lower) + half;
    answer->error = half * (1 + 0x1p-40) + q.off + question.fixed + 0x1p-52 * (static_cast<double>(search.count) + 64 + 4 * std::fabs(answer->lse));
    return answer->error <= question.eps;
}

}  // namespace headlong
