// A query in int8 planes, and its halves of a radius.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "executor/verbs.h"

namespace headlong {

constexpr int kMostPeaks = 32;  // plan.MOST_PEAKS

inline float up(double x) {
    float f = static_cast<float>(x);
    return static_cast<double>(f) < x ? std::nextafterf(f, std::numeric_limits<float>::infinity()) : f;
}

// One number of all, four side by side: each waits for its last.
template <typename Take, typename Join>
double joined(int64_t start, int64_t stop, const Take& take, const Join& join) {
    double each[4] = {0, 0, 0, 0};
    int64_t j = start;
    for (; j + 4 <= stop; j += 4)
        for (int s = 0; s < 4; ++s) each[s] = join(each[s], take(j + s));
    for (; j < stop; ++j) each[0] = join(each[0], take(j));
    return join(join(each[0], each[1]), join(each[2], each[3]));
}

template <typename Take>
double sum_of(int64_t start, int64_t stop, const Take& take) {
    return joined(start, stop, take, [](double a, double b) { return a + b; });
}

inline double square_sum(const double* x, int64_t start, int64_t stop) {
    return sum_of(start, stop, [=](int64_t j) { return x[j] * x[j]; });
}

// The two halves of a "rest" and "peaks" pair: see plan.Term.
inline void split_peaks(const std::vector<double>& x, int64_t start, int64_t stop, double* rest, double* peaks) {
    const int64_t n = stop - start, most = std::min<int64_t>(kMostPeaks, (n + 3) / 4);
    std::vector<double> size(n);
    for (int64_t j = 0; j < n; ++j) size[j] = std::fabs(x[start + j]);
    std::partial_sort(size.begin(), size.begin() + most, size.end(), std::greater<double>());
    double left[kMostPeaks + 1];  // the squares that m peaks leave, each a sum of squares: no difference of large numbers
    left[most] = square_sum(size.data(), most, n);
    for (int64_t m = most; m > 0; --m) left[m - 1] = left[m] + size[m - 1] * size[m - 1];
    const double weight = std::sqrt(static_cast<double>(n) / 3);
    double sum = 0, least = weight * std::sqrt(left[0]);
    *rest = std::sqrt(left[0]), *peaks = 0;
    for (int64_t m = 1; m <= most; ++m) {
        sum += size[m - 1];
        const double norm = std::sqrt(left[m]);
        if (sum + weight * norm < least) least = sum + weight * norm, *rest = norm, *peaks = sum;
    }
}

struct Coded {
    float step;
    int32_t offset[2];
};

// x[start:stop] as step * (256 * high + low); (x - x^)^2 goes to `lost`. write(j, high, low) stores a coordinate.
template <typename Write>
Coded two_planes(const std::vector<double>& x, const Segment& seg, std::vector<double>& lost, const Write& write) {
    constexpr double kLargest = 32512;
    const int64_t start = seg.start, stop = seg.stop;
    const double most = joined(start, stop, [&](int64_t j) { return std::fabs(x[j]); }, [](double a, double b) { return a < b ? b : a; });
    const float step = up(most / kLargest);
    const double inverse = step > 0 && std::isfinite(step) ? 1.0 / step : 0;
    int64_t sum[2] = {0, 0};
    for (int64_t j = start; j < stop; ++j) {
        const int whole = static_cast<int>(std::lrint(std::min(kLargest, std::max(-kLargest, x[j] * inverse))));
        const int high = (whole + 128) >> 8, low = whole - high * 256;
        write(j - start, static_cast<int8_t>(high), static_cast<int8_t>(low));
        sum[0] += high;
        sum[1] += low;
        const double gap = x[j] - static_cast<double>(step) * whole;
        lost[j] = gap * gap;
    }
    return {step, {static_cast<int32_t>(128 * sum[0]), static_cast<int32_t>(128 * sum[1])}};
}

// The query's half of each summand of a radius.
inline std::vector<double> halves_of(const std::vector<Term>& terms, const std::vector<double>& x, const std::vector<double>& lost) {
    std::vector<double> halves;
    double rest = 0, peaks = 0;
    int64_t start = -1, stop = -1;  // of the pair that was split last
    for (const Term& term : terms) {
        double value = 1;
        if (term.kind == TermKind::norm) value = std::sqrt(square_sum(x.data(), term.start, term.stop));
        if (term.kind == TermKind::quantised)
            value = std::sqrt(sum_of(term.start, term.stop, [&](int64_t j) { return lost[j]; }));
        if (term.kind == TermKind::rest || term.kind == TermKind::peaks) {
            if (term.start != start || term.stop != stop) {
                rest = peaks = 0;
                split_peaks(x, start = term.start, stop = term.stop, &rest, &peaks);
            }
            value = term.kind == TermKind::rest ? rest : peaks;
        }
        halves.push_back(value * term.factor);
    }
    return halves;
}

// A radius of these halves, each times what `share` says of its term.
template <typename Share>
void set_radius(const std::vector<Term>& terms, const std::vector<Slack>& slack, const std::vector<double>& halves, const Share& share, Radius& radius) {
    std::vector<double> sums(slack.size(), 0.0);
    for (size_t t = 0; t < terms.size(); ++t) sums[terms[t].row] += halves[t] * share(terms[t]);
    radius.terms = static_cast<int>(slack.size());
    for (size_t r = 0; r < slack.size(); ++r) {
        radius.slack[r] = slack[r];
        radius.term[r] = up(sums[r] * (1 + 0x1p-18));
    }
}

inline void set_radius(const std::vector<Term>& terms, const std::vector<Slack>& slack, const std::vector<double>& halves, Radius& radius) {
    set_radius(terms, slack, halves, [](const Term&) { return 1.0; }, radius);
}

// The query's half of how far all estimates together are off; what no term with `together` is for stays with each class. (The
// peaks of x and the rest of it are two halves of one product.)
inline void set_apart(const std::vector<Term>& terms, const std::vector<Slack>& slack, const std::vector<double>& halves,
                      const std::vector<double>& x, const Radius& radius, Apart& apart) {
    const auto joint = [&](const Term& term) {
        return term.together > 0 || (term.kind == TermKind::peaks && std::any_of(terms.begin(), terms.end(), [&](const Term& pair) {
                   return pair.together > 0 && pair.kind == TermKind::rest && pair.start == term.start && pair.stop == term.stop;
               }));
    };
    apart.length = 0;
    for (const Term& term : terms)
        if (term.together > 0) apart.length += term.together * std::sqrt(square_sum(x.data(), term.start, term.stop)) * (1 + 0x1p-40);
    Radius all{};
    set_radius(terms, slack, halves, [&](const Term& term) { return joint(term) ? 0.0 : 1.0; }, all);
    bool there[kMaxTerms] = {};
    apart.others = Radius{};
    apart.others.constant = radius.constant;
    for (const Term& term : terms) {  // an infinite slack times nothing is nothing: rows of joint terms alone are left out
        if (joint(term) || there[term.row]) continue;
        there[term.row] = true;
        apart.others.slack[apart.others.terms] = all.slack[term.row];
        apart.others.term[apart.others.terms++] = all.term[term.row];
    }
}

}  // namespace headlong
