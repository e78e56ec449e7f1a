// The normaliser by a bet: the heaviest rows are scored, and a sample of the rest in proportion to their estimates. The ratio
// of a sampled term to its proposal lies in a known range, so a bet against every other mean of the ratios wins quickly
// (Waudby-Smith and Ramdas 2023, "Estimating means of bounded random variables by betting").
//
// How many rows to score, and whether a deeper level pays, is guessed from every fourth chunk; what is drawn, with which
// probability, and what the bet decides is exact.
#include <algorithm>
#include <numeric>

#include "bins.h"

namespace headlong {
namespace {

uint64_t mix(uint64_t x) {  // the finaliser of splitmix64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

// Whether a mixture of stakes on factors 1 + stake * factor(ratio) multiplies its wealth by `odds`. A product of many factors
// near one may leave the range of a double in neither direction that matters: 0 loses the bet, infinity wins it.
template <typename Factor>
bool wins(const std::vector<double>& ratios, double odds, const Factor& factor) {
    constexpr int kStakes = 6;
    constexpr double stakes[kStakes] = {0.95, 0.7, 0.45, 0.25, 0.12, 0.05};
    double wealth[kStakes] = {1, 1, 1, 1, 1, 1};
    for (double ratio : ratios) {
        const double gain = factor(ratio);
        for (int s = 0; s < kStakes; ++s) wealth[s] *= 1 + stakes[s] * gain;
    }
    return std::accumulate(wealth, wealth + kStakes, 0.0) / kStakes >= odds;
}

// Which chunks stand for all of them in a guess.
int64_t stride_of(int64_t chunks) { return chunks < 32 ? 1 : 4; }

// `count` points of (0, total) in ascending order: sums of exponential gaps, scaled.
std::vector<double> sorted_points(const Kernels& kernels, uint64_t key, uint32_t round, int64_t count, double total) {
    const int64_t words = (2 * (count + 1) + kBlock - 1) / kBlock * kBlock;
    Scratch<uint32_t> noise(words);
    kernels.noise(key, mix(key), 0x40000000u | round, 0, words, noise.data());
    std::vector<double> at(count + 1);
    double sum = 0;
    for (int64_t i = 0; i <= count; ++i) {
        const uint64_t word = static_cast<uint64_t>(noise[2 * i]) << 32 | noise[2 * i + 1];
        sum -= std::log((static_cast<double>(word) + 0.5) * 0x1p-64);
        at[i] = sum;
    }
    at.pop_back();
    for (double& point : at) point *= total / sum;
    return at;
}

template <typename T>
std::vector<T> joined(const std::vector<std::vector<T>>& each) {
    std::vector<T> all;
    for (const std::vector<T>& one : each) all.insert(all.end(), one.begin(), one.end());
    return all;
}

}  // namespace

// What a bet would cost with the radii at hand. Rows are proposed by their estimate, wider ones than most by exp(ceiling)
// below their upper end: no ratio of a term to its proposal is above exp(ceiling).
Wager Executor::wager_for(const Look& look, int q, double beta, float shift, double known, double aim, double odds, double fixed,
                      int threads, const Scratch<float>& rad) const {
    const float* est = look.est.data() + q * padded;
    const int64_t chunks = (padded + kChunk - 1) / kChunk, stride = stride_of(chunks), some = (chunks + stride - 1) / stride;
    const double weight = static_cast<double>(chunks) / static_cast<double>(some);
    std::vector<Kernels::Sums> sums(some, Kernels::Sums{0, 0, 0, 0});
    over_chunks(some, threads, [&](int, int64_t c) {
        const int64_t first = c * stride * kChunk, n = std::min<int64_t>(kChunk, padded - first);
        bool finite = true;
        const float most = kernels->largest(&rad[first], n, &finite);
        kernels->interval_sums(est + first, &rad[first], n, most, link, static_cast<float>(beta), shift, &sums[c]);
    });
    double centre = 0, moved = 0;
    for (const Kernels::Sums& one : sums) {
        centre += one.centre;
        moved += one.moved;
    }
    Wager wager;
    wager.ceiling = static_cast<float>(std::max(0.02, centre > 0 ? 1.1 * moved / centre : 0));
    wager.most = std::exp(static_cast<double>(wager.ceiling) + fixed) * (1 + 0x1p-18);
    std::vector<Histogram> each(threads);
    over_chunks(some, threads, [&](int t, int64_t c) {
        float u[kChunk];
        const int64_t first = c * stride * kChunk, n = std::min<int64_t>(kChunk, padded - first);
        kernels->proposal(est + first, &rad[first], n, link, static_cast<float>(beta), wager.ceiling, shift, u);
        if (each[t].empty()) each[t].resize(kBins);
        for (int64_t i = 0; i < n; ++i) {
            Bin& bin = each[t][bin_of(u[i])];
            bin.count += u[i] > 0 ? weight : 0;
            bin.low += u[i];
        }
    });
    const Histogram all = sum_up(each);
    double rest = 0, rows = 0;
    for (const Bin& bin : all) rest += bin.low;
    // Every bin may be scored whole or left to the sample; take the cheapest cut. Betting all against a mean that is off
    // by d of ratios up to `most` multiplies the stake by about 1 + d / most at every draw. Proposals that were brought near
    // an upper end have ratios far below one: variance, paid for by 1 / aim^2.
    const double spread = rest > 0 ? std::max(0.0, 1 - centre / rest) : 0;
    wager.needed = 1.25 * (std::log(odds) + 2) * ((wager.most - 1 + 0.15) / std::expm1(aim) + 0.3 * spread / (aim * aim));
    rest *= weight;
    // Proposals that may have been clamped at exp(88) are always scored.
    const int clamped = bin_of(1e37f);
    for (int b = kBins; b > 0; --b) {
        if (b < kBins) {
            rows += all[b].count;
            rest -= all[b].low * weight;
            known += all[b].low * weight;
        }
        const double cost = rows + wager.needed * std::max(0.0, rest) / (known + std::max(0.0, rest)) + 64;
        if (b <= clamped && cost < wager.cost) {
            wager.cost = cost;
            wager.edge = edge_of(b);
        }
    }
    return wager;
}

// Classes that a deeper level should see before a bet: those with the widest gaps, until the others' matter little.
std::vector<int32_t> Executor::widest(const Look& look, int q, const Question& question, float shift, double known,
                                      int threads, const Scratch<float>& rad) const {
    const float *est = look.est.data() + q * padded, beta = static_cast<float>(question.beta);
    const int64_t chunks = (padded + kChunk - 1) / kChunk, stride = stride_of(chunks), some = (chunks + stride - 1) / stride;
    const double weight = static_cast<double>(chunks) / static_cast<double>(some);
    const auto ends = [&](int64_t c, float* low, float* gap) {
        float high[kChunk];
        const int64_t first = c * kChunk, n = std::min<int64_t>(kChunk, padded - first);
        kernels->interval_exps(est + first, &rad[first], n, link, beta, shift, low, high);
        for (int64_t i = 0; i < n; ++i) gap[i] = high[i] - low[i];
        return n;
    };
    std::vector<Histogram> each(threads);
    over_chunks(some, threads, [&](int t, int64_t c) {
        float low[kChunk], gap[kChunk];
        const int64_t n = ends(c * stride, low, gap);
        if (each[t].empty()) each[t].resize(kBins);
        for (int64_t i = 0; i < n; ++i) {
            Bin& bin = each[t][bin_of(gap[i])];
            bin.low += low[i];
            bin.high += gap[i];
        }
    });
    const Histogram all = sum_up(each);
    double low = known / weight, open = 0;
    for (const Bin& bin : all) {
        low += bin.low;
        open += bin.high;
    }
    int cut = kBins;
    while (cut > 1 && open > question.eps * low) open -= all[--cut].high;
    const float edge = edge_of(cut), none[kChunk] = {};
    std::vector<std::vector<int32_t>> wanted(threads);
    over_chunks(chunks, threads, [&](int t, int64_t c) {
        float lows[kChunk], gap[kChunk], kept[kChunk], upper[kChunk];
        int32_t ids[kChunk];
        const int64_t n = ends(c, lows, gap);
        const int64_t came = kernels->survivors(gap, none, n, edge, static_cast<int32_t>(c * kChunk), ids, kept, upper);
        wanted[t].insert(wanted[t].end(), ids, ids + came);
    });
    return joined(wanted);
}

Status Executor::bet(Look& look, int q, const Question& question, int threads, std::vector<Scored>& scored,
                     Interval& lse, Answer& answer) const {
    float* est = look.est.data() + q * padded;
    const float none = -std::numeric_limits<float>::infinity(), beta = static_cast<float>(question.beta);
    float shift = static_cast<float>(look.masses[q].shift);
    for (const Scored& s : scored) shift = std::max(shift, static_cast<float>(linked(s.z) * question.beta));
    double exact = 0;
    for (const Scored& s : scored) {
        exact += std::exp(linked(s.z) * question.beta - shift);
        est[s.id] = none;
    }
    const double fixed = float_error(shift, question.beta) + dot_error(&look.hidden[q * dim]);
    const double aim = question.eps - fixed, odds = 2 / question.delta;
    if (aim <= 0) return refine(look, q, question, threads, scored, lse, answer);
    Scratch<float> rad = radii(look, q, threads, true);
    Wager wager;
    for (size_t level = 0;; ++level) {
        wager = wager_for(look, q, question.beta, shift, exact, aim, odds, fixed, threads, rad);
        const bool fair = wager.ceiling < 8 && wager.cost < share * static_cast<double>(vocab);
        if (level < deeper.size() && look.source == &preview) {
            const std::vector<int32_t> wanted = widest(look, q, question, shift, exact, threads, rad);
            const double price = static_cast<double>(wanted.size()) * deeper[level].bytes;
            if (!fair || price < 0.5 * wager.cost * row_bytes()) {
                read_deeper(look, q, static_cast<int>(level), wanted, threads, rad, answer);
                continue;
            }
        }
        if (!fair) return Status::dear;
        break;
    }

    // Proposals of all classes; the heavy ones are taken out and scored.
    const int64_t chunks = (padded + kChunk - 1) / kChunk, runs = padded / kRun;
    Scratch<float> u(padded);
    Scratch<double> before(runs + 1);
    std::vector<std::vector<Scored>> heavy_ids(threads);
    over_chunks(chunks, threads, [&](int t, int64_t c) {
        const int64_t first = c * kChunk, n = std::min<int64_t>(kChunk, padded - first);
        int32_t ids[kChunk + kRun];
        kernels->proposal(est + first, &rad[first], n, link, beta, wager.ceiling, shift, &u[first]);
        const int64_t came = kernels->split(&u[first], n, wager.edge, static_cast<int32_t>(first), ids, &before[first / kRun + 1]);
        for (int64_t i = 0; i < came; ++i) heavy_ids[t].push_back({ids[i], 0});
    });
    std::vector<Scored> heavy = joined(heavy_ids);
    if (static_cast<double>(heavy.size()) > 2 * share * static_cast<double>(vocab) + 4096) return Status::dear;
    score(&look.hidden[q * dim], heavy, threads);
    for (const Scored& s : heavy) {
        exact += std::exp(linked(s.z) * question.beta - shift);
        est[s.id] = none;
    }
    scored.insert(scored.end(), heavy.begin(), heavy.end());
    before[0] = 0;
    for (int64_t r = 0; r < runs; ++r) before[r + 1] += before[r];
    const double total = before[runs];
    if (out_of_range(exact, exact + total)) return Status::dear;
    if (!(total > 0)) {
        lse = {shift + std::log(exact), fixed};
        return Status::done;
    }
    uint64_t key = question.seed;
    for (int64_t j = 0; j < dim; ++j) {
        uint64_t word;
        std::memcpy(&word, &look.hidden[q * dim + j], 8);
        key = mix(key ^ word) + 0x9E3779B97F4A7C15u;
    }
    std::vector<double> ratios;
    double share_of_rest = total / (exact + total), ratio_sum = 0;
    int64_t draws = static_cast<int64_t>(wager.needed * share_of_rest) + 64;
    for (uint32_t round = 0; round < 6; ++round) {
        if (static_cast<double>(ratios.size()) + draws > share * static_cast<double>(vocab) + 4096) return Status::dear;
        const std::vector<double> at = sorted_points(*kernels, key, round, draws, total);
        std::vector<Scored> distinct;
        std::vector<int32_t> times;
        int64_t run = 0, place = 0;
        double sum = 0;  // of the classes of the run before `place`, and those of the runs before
        for (double point : at) {
            for (; run + 1 < runs && before[run + 1] <= point; ++run) place = 0;
            if (place == 0) sum = before[run];
            int64_t last = -1;  // where roundings lead beyond the run, its last class that has any mass
            for (int64_t i = run * kRun + place; i < (run + 1) * kRun; ++i) {
                if (!(u[i] > 0)) continue;
                last = i;
                if (point < sum + u[i]) break;
                if (i + 1 < (run + 1) * kRun) sum += u[i], place = i + 1 - run * kRun;
            }
            if (last < 0)
                for (last = run * kRun + place; last > 0 && !(u[last] > 0);) --last;
            if (distinct.empty() || distinct.back().id != last) distinct.push_back({last, 0}), times.push_back(0);
            ++times.back();
        }
        score(&look.hidden[q * dim], distinct, threads);
        answer.bytes += static_cast<double>(distinct.size()) * row_bytes();
        answer.rows += static_cast<int64_t>(distinct.size());
        for (size_t d = 0; d < distinct.size(); ++d) {
            const double ratio = std::exp(linked(distinct[d].z) * question.beta - shift) / u[distinct[d].id];
            ratios.insert(ratios.end(), times[d], ratio);
            ratio_sum += ratio * times[d];
        }
        const double mean = ratio_sum / static_cast<double>(ratios.size()), middle = exact + total * mean;
        const double above = (middle * std::exp(aim) - exact) / total, below = (middle * std::exp(-aim) - exact) / total;
        const double most = wager.most, down = 1 / (most - above), up = 1 / below;
        const bool not_above = above >= most || wins(ratios, odds, [&](double v) { return (above - v) * down; });
        const bool not_below = below <= 0 || wins(ratios, odds, [&](double v) { return (v - below) * up; });
        if (not_above && not_below) {
            lse = {shift + std::log(middle), question.eps};
            return Status::done;
        }
        draws = std::max<int64_t>(64, static_cast<int64_t>(ratios.size()) / 2);
    }
    return Status::dear;
}

}  // namespace headlong
