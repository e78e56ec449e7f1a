#include "node_sums/search.h"

#include <algorithm>
#include <cmath>

#include "node_sums/median_order.h"

namespace headlong {
namespace {

constexpr double kRoom = 0.98;      // of eps: roundings of the sums have the rest
constexpr double kMostEps = 8;      // a larger one asks for no less
constexpr int kTurns = 3;           // in which room is divided among the nodes that are left
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

// exp(x), nothing where that is next to nothing: beside a sum near 1, whose rounding is more. It takes long there.
double exp_of(double x) { return x < -700 ? 0 : std::exp(x); }

template <int kDim>
Logits logits_of(const double* node, double count, const Query& q) {
    static const NodeLayout at(kDim);
    double mean = 0, spread = 0, squares = 0;
    const double* covariance = node + at.spread;
    for (int j = 0; j <= kDim; ++j) {
        mean += node[j] * q.y[j];
        double row = 0;
        for (int k = 0; k <= j; ++k) row += covariance[k] * q.y[k];
        covariance += j + 1;
        spread += row * q.y[j];
        squares += covariance[-1] * q.y[j] * q.y[j];
    }
    double low = node[at.rest], high = node[at.rest + 1];
    for (int j = 0; j < kDim; ++j) {
        const double x = q.hidden[j] - node[at.level + j], a = node[at.low + j] * x, b = node[at.high + j] * x;
        low += std::min(a, b);
        high += std::max(a, b);
    }
    Logits z;
    z.mean = mean;
    // Moved by as much as their mean is rounded, logits have this mean, and are within these ends and what these are rounded.
    z.low = std::min(low * q.scale, mean) - 2 * q.off;
    z.high = std::max(high * q.scale, mean) + 2 * q.off;
    const double lost = kLost * std::sqrt(count) * (kDim + 1) * squares, widest = (z.high - mean) * (mean - z.low);
    z.least = std::min(std::max(spread - lost, 0.0), widest);
    z.most = std::min(std::max(spread + lost, 0.0), widest);
    return z;
}

using LogitsOf = Logits (*)(const double*, double, const Query&);
constexpr LogitsOf kLogitsOf[NodeLayout::kMostDim] = {logits_of<1>, logits_of<2>, logits_of<3>, logits_of<4>,
                                                      logits_of<5>, logits_of<6>, logits_of<7>, logits_of<8>};

// Of `count` numbers with this mean, variance and ends, the sum of exp(z - shift): the least has an atom at the low end, the largest
// one at the high end.
Ends ends_of(const Logits& z, double count, double shift) {
    const double above = z.high - z.mean, below = z.mean - z.low, a = above * above, b = below * below;
    const double first = exp_of(z.low - shift), last = exp_of(z.high - shift);
    Ends e{count * first, count * last};
    if (last == 0 || std::isinf(last)) return e;
    if (a + z.most > 0) e.upper = count * (z.most * last + a * exp_of(z.mean - z.most / above - shift)) / (z.most + a);
    if (b + z.least > 0) e.lower = count * (z.least * first + b * exp_of(z.mean + z.least / below - shift)) / (z.least + b);
    return e;
}

// The logits of a leaf's classes, column after column.
void score_leaf(const NodeSums& s, int64_t leaf, const Query& q, std::vector<double>* scored) {
    const int64_t start = node_start(s.vocab, s.levels, leaf), n = node_start(s.vocab, s.levels, leaf + 1) - start;
    const float* column = s.rows.data() + start * (s.dim + 1);
    const size_t before = scored->size();
    scored->resize(before + n, 0.0);
    double* z = scored->data() + before;
    for (int64_t j = 0; j <= s.dim; ++j, column += n)
        for (int64_t i = 0; i < n; ++i) z[i] += static_cast<double>(column[i]) * q.y[j];
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
    Search(const NodeSums& sums, const Kernels& table, const Query& query, double room) : s(sums), kernels(table), q(query), spread(room) {}

    const NodeSums& s;
    const Kernels& kernels;
    const Query& q;
    const double spread;  // gaps may be so much of the lower end
    Total total;
    std::vector<int64_t> open{0}, next;
    std::vector<Logits> logits;
    std::vector<Ends> ends;
    std::vector<double> scored;
    double bytes = 0;
    int64_t count = 0;  // what was added up

    void bound(int level) {
        const double* first = s.nodes.get() + ((int64_t{1} << level) - 1) * s.at.fields;
        const LogitsOf of = kLogitsOf[s.dim - 1];
        logits.clear(), ends.clear();
        double shift = total.shift;
        for (int64_t node : open) {
            const double classes = static_cast<double>(node_start(s.vocab, level, node + 1) - node_start(s.vocab, level, node));
            const Logits z = of(first + node * s.at.fields, classes, q);
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

    void close(size_t i) {
        total.lower += ends[i].lower;
        total.gap += std::max(ends[i].upper - ends[i].lower, 0.0);
    }

    // Closes nodes whose gaps are at most their share of the room, and opens the others; true once all of them have room together.
    bool narrow(int level) {
        double lower = total.lower, gap = 0;
        for (const Ends& e : ends) lower += e.lower, gap += e.upper - e.lower;
        const double room = spread * lower - total.gap, most = total.gap + (level == s.levels ? room : room / 2);
        const bool done = gap <= room;
        std::vector<int64_t>& left = next;  // places in `open`, then nodes
        left.clear();
        for (size_t i = 0; i < open.size(); ++i) done ? close(i) : left.push_back(static_cast<int64_t>(i));
        for (int turn = 0; turn < kTurns && !left.empty(); ++turn) {
            const double share = (most - total.gap) / static_cast<double>(left.size());
            left.erase(std::remove_if(left.begin(), left.end(), [&](int64_t i) {
                const bool closes = ends[i].upper - ends[i].lower <= share;
                if (closes) close(i);
                return closes;
            }), left.end());
        }
        descend(level);
        return done;
    }

    // Opens the nodes at the places that are left.
    void descend(int level) {
        std::vector<int64_t> nodes;
        for (int64_t i : next) {
            if (level == s.levels) score_leaf(s, open[i], q, &scored);
            else nodes.push_back(2 * open[i]), nodes.push_back(2 * open[i] + 1);
        }
        open.swap(nodes);
        if (level == s.levels) bytes += static_cast<double>(scored.size()) * static_cast<double>(s.dim + 1) * 4;
    }

    void add_scored() {
        if (scored.empty()) return;
        total.raise(*std::max_element(scored.begin(), scored.end()));
        total.lower += kernels.sum_exps(scored.data(), static_cast<int64_t>(scored.size()), total.shift);
        count += static_cast<int64_t>(scored.size());
    }
};

}  // namespace

bool sum_nodes(const NodeSums& s, const Kernels& kernels, const double* hidden, const SumsQuestion& question, Answer* answer) {
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
    Search search(s, kernels, q, std::expm1(2 * eps));
    bool given_up = false;
    for (int level = 0; level <= s.levels && !search.open.empty() && !given_up; ++level) {
        search.bound(level);
        if (search.narrow(level)) break;
        given_up = !search.open.empty() && search.bytes > s.most;
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
