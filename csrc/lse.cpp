// The normaliser of one query, from the interval of every class.
//
// normaliser: exact terms where scored, intervals elsewhere. Where that is wider than asked for:
// refine  reads on, widest terms first, until the sum of the gaps is small enough: proved;
// bet     scores the heaviest rows and a sample of the rest in proportion to their estimates. The ratio of a sampled term
//         to its estimate lies in a known range, so a bet against every other mean of the ratios wins quickly
//         (Waudby-Smith and Ramdas 2023, "Estimating means of bounded random variables by betting").
#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>

#include "executor.h"
#include "pool.h"

namespace headlong {
namespace {

constexpr int kBins = 512;             // of a float, half an octave each
constexpr double kSumError = 0x1p-16;  // relative: float sums and exponentials of a look
constexpr double kExpError = 0x1p-17;  // relative: exponentials of a look, summed in float64

int bin_of(float x) {
    int32_t word;
    std::memcpy(&word, &x, 4);
    return word < 0 ? 0 : word >> 22;  // eight bits of exponent and one of mantissa; nothing below zero has a bin
}

struct Bin {
    double count = 0, low = 0, high = 0;
};
using Histogram = std::vector<Bin>;

double half_width(double low, double high) { return low > 0 ? 0.5 * std::log(high / low) : kInf; }

// Exponentials less than exp(-88) of the shift are 0. Where rows turned out so far above or below the estimates that set it
// (it is that of a look), the sums have lost the other classes.
bool out_of_range(double exact, double sum) { return !(exact < 1e30 && sum > 1e-20); }

// Runs work(thread, chunk) over all chunks, each thread its own run of them: sums come out the same every time.
template <typename Work>
void over_chunks(int64_t chunks, int threads, const Work& work) {
    run_parallel(threads, [&](int thread) {
        for (int64_t c = chunks * thread / threads; c < chunks * (thread + 1) / threads; ++c) work(thread, c);
    });
}

Histogram sum_up(std::vector<Histogram>& each) {
    Histogram all(kBins);
    for (const Histogram& one : each)
        for (int b = 0; b < kBins; ++b) {
            all[b].count += one[b].count;
            all[b].low += one[b].low;
            all[b].high += one[b].high;
        }
    return all;
}

uint64_t mix(uint64_t x) {  // the finaliser of splitmix64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

// A product of many factors near one may leave the range of a double in neither direction that matters: 0 loses the bet,
// infinity wins it.
template <typename Factor>
double bet_on(const std::vector<double>& ratios, const Factor& factor) {
    constexpr double kStakes[] = {0.95, 0.7, 0.45, 0.25, 0.12, 0.05};
    double wealth = 0;
    for (double stake : kStakes) {
        double a = 1, b = 1;
        size_t i = 0;
        for (; i + 2 <= ratios.size(); i += 2) {
            a *= 1 + stake * factor(ratios[i]);
            b *= 1 + stake * factor(ratios[i + 1]);
        }
        if (i < ratios.size()) a *= 1 + stake * factor(ratios[i]);
        wealth += a * b / (sizeof kStakes / sizeof kStakes[0]);
    }
    return wealth;
}

}  // namespace

// What float32 arithmetic may add to lse: link, temperature and shift of terms within 64 nats of the largest one.
double Executor::float_error(double shift, double beta) const {
    const double own = link.form == 1 ? link_a * beta * 0x1p-19 : link.form == 2 ? link.slop * beta + link_b : 0;
    return (std::fabs(shift) + 64) * (link.form == 2 ? 0x1p-21 : 0x1p-22) + own;
}

// What float64 accumulation may add to an exact logit, and the link to its exponent.
double Executor::dot_error(const double* hidden) const {
    double square = 0;
    for (int64_t j = 0; j < dim; ++j) square += hidden[j] * hidden[j];
    const double steepest = link.form == 1 ? 1 : std::max(link_a, 1.0), own = link.form == 2 ? link_b : 0;
    return static_cast<double>(dim + 8) * 0x1p-53 * (most_norm * std::sqrt(square) + 1) * steepest + own;
}

// The point is the sum at the estimates, which is closer than the middle of the interval, unless eps asks for the middle.
Interval Executor::normaliser(const Look& look, int q, const Question& question, const std::vector<Scored>& scored,
                              const std::vector<float>& est, const std::vector<float>& upper) const {
    const double beta = question.beta;
    const Part* parts = &look.parts[static_cast<size_t>(q) * look.threads];
    double shift = -kInf;
    for (int t = 0; t < look.threads; ++t) shift = std::max(shift, parts[t].shift);
    for (const Scored& s : scored) shift = std::max(shift, linked(s.z) * beta);
    if (shift == -kInf) return {-kInf, 0};
    double low = 0, high = 0, centre = 0, exact = 0;
    for (int t = 0; t < look.threads; ++t) {
        if (parts[t].shift == -kInf) continue;
        const double fade = std::exp(parts[t].shift - shift);
        low += parts[t].sums.low * fade;
        high += parts[t].sums.high * fade;
        centre += parts[t].sums.centre * fade;
    }
    const double slop = kSumError * high;
    low -= slop;
    high += slop;
    // What was scored leaves the sums. They hold its ends as float32 had them, up to `off` away in the exponent; an end
    // beyond exp(87) of its chunk made them infinite.
    const double off = float_error(shift, beta), less = std::exp(-off), more = std::exp(off);
    for (size_t i = 0; i < scored.size(); ++i) {
        const double rad = static_cast<double>(upper[i]) - est[i];
        const double f = linked(est[i]), wide = static_cast<double>(link.a) * rad;
        low -= std::exp((link.form == 2 ? f - wide : linked(est[i] - rad)) * beta - shift) * more;
        high -= std::exp((link.form == 2 ? f + wide : linked(est[i] + rad)) * beta - shift) * less;
        centre -= std::exp(f * beta - shift);
        exact += std::exp(linked(scored[i].z) * beta - shift);
    }
    low = exact + std::max(low, 0.0);
    high = exact + std::max(high, 0.0);
    centre += exact;
    double error = half_width(low, high) + off;
    // An interval that wide, or no number, says nothing. What was scored is left.
    if (!(error < 20)) {
        double most = -kInf, sum = 0;
        for (const Scored& s : scored) most = std::max(most, linked(s.z) * beta);
        for (const Scored& s : scored) sum += std::exp(linked(s.z) * beta - most);
        return {scored.empty() ? shift : most + std::log(sum), kInf};
    }
    const double bottom = std::log(low), top = std::log(high), spare = question.eps - off - 1e-9;
    double point = 0.5 * (bottom + top);
    if (centre > low && centre < high && error < question.eps)
        point = std::min(std::max(std::log(centre), top - spare), bottom + spare);
    error = std::max(top - point, point - bottom) + off;
    return {shift + point, error};
}

std::vector<float> Executor::radii(const Look& look, int q, int threads) const {
    std::vector<float> rad(padded);
    over_chunks((padded + kChunk - 1) / kChunk, threads, [&](int, int64_t c) {
        const int64_t first = c * kChunk, n = std::min<int64_t>(kChunk, padded - first);
        kernels->radius(look.prepared.radius[q], first, n, &rad[first]);
        // A class that is not there has no width: -inf plus an infinite radius would be no number.
        for (int64_t i = first; i < first + n; ++i)
            if (look.est[q * padded + i] == -std::numeric_limits<float>::infinity()) rad[i] = 0;
    });
    return rad;
}

// Brings the estimates and radii of `ids` to a deeper level.
void Executor::read_deeper(Look& look, int q, int level, const std::vector<int32_t>& ids, int threads,
                           std::vector<float>& rad, Answer& answer) const {
    float* est = look.est.data() + q * padded;
    constexpr int64_t kGrain = 256;
    over_chunks((static_cast<int64_t>(ids.size()) + kGrain - 1) / kGrain, threads, [&](int, int64_t g) {
        const std::vector<int32_t> some(ids.begin() + g * kGrain,
                                        ids.begin() + std::min<int64_t>(ids.size(), (g + 1) * kGrain));
        float closer[kGrain], width[kGrain];
        for (size_t i = 0; i < some.size(); ++i) closer[i] = est[some[i]];
        look_deeper(look, q, level, some, closer, width);
        for (size_t i = 0; i < some.size(); ++i) {
            est[some[i]] = closer[i];
            rad[some[i]] = width[i];
        }
    });
    answer.bytes += static_cast<double>(ids.size()) * deeper[level].bytes;
}

// Scored classes leave look.est, so that what it holds is the rest.
Status Executor::refine(Look& look, int q, const Question& question, int threads, std::vector<Scored>& scored,
                        Interval& lse, Answer& answer) const {
    float* est = look.est.data() + q * padded;
    const float none = -std::numeric_limits<float>::infinity(), beta = static_cast<float>(question.beta);
    float shift = none;
    for (int t = 0; t < look.threads; ++t)
        shift = std::max(shift, static_cast<float>(look.parts[static_cast<size_t>(q) * look.threads + t].shift));
    for (const Scored& s : scored) shift = std::max(shift, static_cast<float>(linked(s.z) * question.beta));
    double exact = 0;
    for (const Scored& s : scored) {
        exact += std::exp(linked(s.z) * question.beta - shift);
        est[s.id] = none;
    }
    const int64_t chunks = (padded + kChunk - 1) / kChunk;
    const double fixed = float_error(shift, question.beta) + dot_error(&look.hidden[q * dim]);
    const double aim = question.eps - fixed, most = share * static_cast<double>(vocab);
    if (aim <= 0) return Status::dear;
    std::vector<float> rad = radii(look, q, threads);
    const auto ends_of = [&](int64_t c, float* low, float* high) {
        const int64_t n = std::min<int64_t>(kChunk, padded - c * kChunk);
        kernels->interval_exps(est + c * kChunk, &rad[c * kChunk], n, link, beta, shift, low, high);
        return n;
    };
    // Gaps of exponentials that may have been clamped are in the uppermost bins, which are always read.
    const int clamped = bin_of(1e37f), levels = look.source == &preview ? static_cast<int>(deeper.size()) : 0;
    for (int level = 0; level <= levels; ++level) {
        std::vector<Histogram> each(threads, Histogram(kBins));
        over_chunks(chunks, threads, [&](int t, int64_t c) {
            float low[kChunk], high[kChunk];
            const int64_t n = ends_of(c, low, high);
            for (int64_t i = 0; i < n; ++i) {
                Bin& bin = each[t][bin_of(high[i] - low[i])];
                bin.count += high[i] > 0;
                bin.low += low[i];
                bin.high += high[i];
            }
        });
        const Histogram all = sum_up(each);
        double low = exact, gap = 0;
        for (const Bin& bin : all) {
            low += bin.low;
            gap += bin.high - bin.low;
        }
        const bool last = level == levels;
        // Rows at their last codes are scored until the rest is narrow enough; before that, they are looked at more
        // closely until the rest takes half of what may stay open.
        const double open = low * std::expm1(2 * aim) * (1 - 4 * kExpError) - 2 * kExpError * (low + gap);
        const double bearable = last ? open : 0.5 * open;
        double rows = 0;
        int cut = kBins;
        while (cut > 1 && (gap > bearable || cut > clamped)) {
            --cut;
            gap -= all[cut].high - all[cut].low;
            rows += all[cut].count;
        }
        if (rows > (last ? most : 0.8 * static_cast<double>(vocab)) || bearable <= 0) {
            if (last) return Status::dear;
            continue;
        }
        std::vector<int32_t> wanted;
        std::mutex joining;
        if (rows > 0)
            over_chunks(chunks, threads, [&](int, int64_t c) {
                float lows[kChunk], highs[kChunk];
                std::vector<int32_t> own;
                const int64_t n = ends_of(c, lows, highs);
                for (int64_t i = 0; i < n; ++i)
                    if (bin_of(highs[i] - lows[i]) >= cut) own.push_back(static_cast<int32_t>(c * kChunk + i));
                std::lock_guard<std::mutex> lock(joining);
                wanted.insert(wanted.end(), own.begin(), own.end());
            });
        if (!last) {
            read_deeper(look, q, level, wanted, threads, rad, answer);
            continue;
        }
        std::vector<Scored> rest;
        for (int32_t id : wanted) rest.push_back({id, 0});
        score(&look.hidden[q * dim], rest, threads);
        for (const Scored& s : rest) {
            exact += std::exp(linked(s.z) * question.beta - shift);
            est[s.id] = none;
            rad[s.id] = 0;
        }
        scored.insert(scored.end(), rest.begin(), rest.end());
        double bottom = exact, top = exact;
        for (int b = 0; b < cut; ++b) {
            bottom += all[b].low * (1 - kExpError);
            top += all[b].high * (1 + kExpError);
        }
        if (out_of_range(exact, bottom)) return Status::dear;
        lse = {shift + 0.5 * (std::log(bottom) + std::log(top)), half_width(bottom, top) + fixed};
    }
    return lse.error <= question.eps ? Status::done : Status::dear;
}

// The sums of a query's intervals, in the same order every time.
Kernels::Sums Executor::sums_of(const Look& look, int q, double beta, float shift, const std::vector<float>& rad,
                                int threads) const {
    const int64_t chunks = (padded + kChunk - 1) / kChunk;
    std::vector<Kernels::Sums> each(chunks, Kernels::Sums{0, 0, 0, 0});
    over_chunks(chunks, threads, [&](int, int64_t c) {
        const int64_t first = c * kChunk, n = std::min<int64_t>(kChunk, padded - first);
        const float most = *std::max_element(&rad[first], &rad[first] + n);
        kernels->interval_sums(&look.est[q * padded + first], &rad[first], n, most, link, static_cast<float>(beta), shift,
                               &each[c]);
    });
    Kernels::Sums all{0, 0, 0, 0};
    for (const Kernels::Sums& one : each) {
        all.low += one.low;
        all.high += one.high;
        all.centre += one.centre;
        all.moved += one.moved;
    }
    return all;
}

// Classes that a deeper level should see before a bet: those with the widest gaps, until the others' matter little.
std::vector<int32_t> Executor::widest(const Look& look, int q, const Question& question, float shift, double known,
                                      int threads, const std::vector<float>& rad) const {
    const float* est = look.est.data() + q * padded;
    const int64_t chunks = (padded + kChunk - 1) / kChunk;
    std::vector<float> gap(padded);
    std::vector<Histogram> each(threads, Histogram(kBins));
    over_chunks(chunks, threads, [&](int t, int64_t c) {
        float low[kChunk], high[kChunk];
        const int64_t first = c * kChunk, n = std::min<int64_t>(kChunk, padded - first);
        kernels->interval_exps(est + first, &rad[first], n, link, static_cast<float>(question.beta), shift, low, high);
        for (int64_t i = 0; i < n; ++i) {
            gap[first + i] = high[i] - low[i];
            Bin& bin = each[t][bin_of(gap[first + i])];
            bin.low += low[i];
            bin.high += high[i];
        }
    });
    const Histogram all = sum_up(each);
    double low = known, open = 0;
    for (const Bin& bin : all) {
        low += bin.low;
        open += bin.high - bin.low;
    }
    int cut = kBins;
    while (cut > 1 && open > question.eps * low) {
        --cut;
        open -= all[cut].high - all[cut].low;
    }
    std::vector<int32_t> wanted;
    for (int64_t i = 0; i < vocab; ++i)
        if (bin_of(gap[i]) >= cut) wanted.push_back(static_cast<int32_t>(i));
    return wanted;
}

Status Executor::bet(Look& look, int q, const Question& question, int threads, std::vector<Scored>& scored,
                     Interval& lse, Answer& answer) const {
    float* est = look.est.data() + q * padded;
    const float none = -std::numeric_limits<float>::infinity(), beta = static_cast<float>(question.beta);
    float shift = none;
    for (int t = 0; t < look.threads; ++t)
        shift = std::max(shift, static_cast<float>(look.parts[static_cast<size_t>(q) * look.threads + t].shift));
    for (const Scored& s : scored) shift = std::max(shift, static_cast<float>(linked(s.z) * question.beta));
    double exact = 0;
    for (const Scored& s : scored) {
        exact += std::exp(linked(s.z) * question.beta - shift);
        est[s.id] = none;
    }
    const double fixed = float_error(shift, question.beta) + dot_error(&look.hidden[q * dim]);
    const double aim = question.eps - fixed, odds = 2 / question.delta;
    const int64_t chunks = (padded + kChunk - 1) / kChunk;
    if (aim <= 0) return refine(look, q, question, threads, scored, lse, answer);
    std::vector<float> rad = radii(look, q, threads);
    float ceiling = 0;
    const auto proposals = [&](int64_t c, float* out) {
        const int64_t first = c * kChunk, n = std::min<int64_t>(kChunk, padded - first);
        kernels->proposal(est + first, &rad[first], n, link, beta, ceiling, shift, out);
        return n;
    };
    double most = 0, needed = 0;
    int cut = kBins;
    for (size_t level = 0;; ++level) {
        // Rows are proposed by their estimate, wider ones than most by exp(ceiling) below their upper end: no ratio of
        // a term to its proposal is above exp(ceiling).
        const Kernels::Sums sums = sums_of(look, q, question.beta, shift, rad, threads);
        ceiling = static_cast<float>(std::max(0.02, sums.centre > 0 ? 1.1 * sums.moved / sums.centre : 0));
        most = std::exp(static_cast<double>(ceiling) + fixed) * (1 + 0x1p-18);
        std::vector<Histogram> each(threads, Histogram(kBins));
        over_chunks(chunks, threads, [&](int t, int64_t c) {
            float u[kChunk];
            const int64_t n = proposals(c, u);
            for (int64_t i = 0; i < n; ++i) {
                Bin& bin = each[t][bin_of(u[i])];
                bin.count += u[i] > 0;
                bin.low += u[i];
            }
        });
        const Histogram all = sum_up(each);
        double rows = 0, rest = 0, known = exact, least = kInf;
        for (const Bin& bin : all) rest += bin.low;
        // Every bin may be scored whole or left to the sample; take the cheapest cut. Betting all against a mean that
        // is off by d of ratios up to `most` multiplies the stake by about 1 + d / most at every draw.
        // Proposals that were brought near an upper end have ratios far below one: variance, paid for by 1 / aim^2.
        const double spread = rest > 0 ? std::max(0.0, 1 - sums.centre / rest) : 0;
        needed = 1.25 * (std::log(odds) + 2) * ((most - 1 + 0.15) / std::expm1(aim) + 0.3 * spread / (aim * aim));
        // Proposals that may have been clamped at exp(88) are always scored.
        const int clamped = bin_of(1e37f);
        for (int b = kBins; b > 0; --b) {
            if (b < kBins) {
                rows += all[b].count;
                rest -= all[b].low;
                known += all[b].low;
            }
            const double cost = rows + needed * std::max(0.0, rest) / (known + std::max(0.0, rest)) + 64;
            if (b <= clamped && cost < least) {
                least = cost;
                cut = b;
            }
        }
        const bool fair = ceiling < 8 && least < share * static_cast<double>(vocab);
        if (level < deeper.size() && look.source == &preview) {
            const std::vector<int32_t> wanted = widest(look, q, question, shift, exact, threads, rad);
            const double price = static_cast<double>(wanted.size()) * deeper[level].bytes;
            if (!fair || price < 0.5 * least * row_bytes()) {
                read_deeper(look, q, static_cast<int>(level), wanted, threads, rad, answer);
                continue;
            }
        }
        if (!fair) return Status::dear;
        break;
    }

    std::vector<Scored> heavy;
    std::vector<double> sums(chunks);
    std::mutex joining;
    over_chunks(chunks, threads, [&](int, int64_t c) {
        float u[kChunk];
        const int64_t n = proposals(c, u);
        std::vector<Scored> own;
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) {
            if (bin_of(u[i]) >= cut) own.push_back({c * kChunk + i, 0});
            else sum += u[i];
        }
        sums[c] = sum;
        std::lock_guard<std::mutex> lock(joining);
        heavy.insert(heavy.end(), own.begin(), own.end());
    });
    score(&look.hidden[q * dim], heavy, threads);
    // In the order of ids: the sum, and so the answer, must not depend on which thread came first.
    std::sort(heavy.begin(), heavy.end(), [](const Scored& a, const Scored& b) { return a.id < b.id; });
    for (const Scored& s : heavy) {
        exact += std::exp(linked(s.z) * question.beta - shift);
        est[s.id] = none;
        rad[s.id] = 0;
    }
    scored.insert(scored.end(), heavy.begin(), heavy.end());
    const double total = std::accumulate(sums.begin(), sums.end(), 0.0);
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
    int64_t draws = static_cast<int64_t>(needed * share_of_rest) + 64;
    for (uint32_t round = 0; round < 6; ++round) {
        if (static_cast<double>(ratios.size()) + draws > share * static_cast<double>(vocab) + 4096) return Status::dear;
        const int64_t words = (2 * draws + kBlock - 1) / kBlock * kBlock;
        std::vector<uint32_t> noise(words);
        kernels->noise(key, mix(key), 0x40000000u | round, 0, words, noise.data());
        std::vector<double> at(draws);
        for (int64_t i = 0; i < draws; ++i)
            at[i] = (static_cast<double>(static_cast<uint64_t>(noise[2 * i]) << 32 | noise[2 * i + 1]) + 0.5) * 0x1p-64 * total;
        std::sort(at.begin(), at.end());
        std::vector<double> before(chunks + 1, 0.0);
        std::partial_sum(sums.begin(), sums.end(), before.begin() + 1);
        std::vector<Scored> drawn(draws);
        std::vector<double> proposed(draws);
        over_chunks(chunks, threads, [&](int, int64_t c) {
            size_t i = std::lower_bound(at.begin(), at.end(), before[c]) - at.begin();
            const size_t stop = c + 1 == chunks ? at.size() : std::lower_bound(at.begin(), at.end(), before[c + 1]) - at.begin();
            if (i >= stop) return;
            float u[kChunk];
            const int64_t n = proposals(c, u);
            double sum = before[c];
            int64_t last = -1;
            for (int64_t j = 0; j < n && i < stop; ++j) {
                if (!(u[j] > 0) || bin_of(u[j]) >= cut) continue;
                sum += u[j];
                last = j;
                for (; i < stop && at[i] < sum; ++i) {
                    drawn[i] = {c * kChunk + j, 0};
                    proposed[i] = u[j];
                }
            }
            for (; i < stop; ++i) {  // a rounding beyond the last class of the chunk
                drawn[i] = {c * kChunk + last, 0};
                proposed[i] = u[last];
            }
        });
        std::vector<Scored> distinct;
        for (const Scored& s : drawn)
            if (distinct.empty() || distinct.back().id != s.id) distinct.push_back(s);
        score(&look.hidden[q * dim], distinct, threads);
        answer.bytes += static_cast<double>(distinct.size()) * row_bytes();
        answer.rows += static_cast<int64_t>(distinct.size());
        for (size_t i = 0, d = 0; i < drawn.size(); ++i) {
            if (distinct[d].id != drawn[i].id) ++d;
            ratios.push_back(std::exp(linked(distinct[d].z) * question.beta - shift) / proposed[i]);
            ratio_sum += ratios.back();
        }
        const double mean = ratio_sum / static_cast<double>(ratios.size()), middle = exact + total * mean;
        const double above = (middle * std::exp(aim) - exact) / total, below = (middle * std::exp(-aim) - exact) / total;
        const bool not_above =
            above >= most || bet_on(ratios, [&](double v) { return (above - v) / (most - above); }) >= odds;
        const bool not_below = below <= 0 || bet_on(ratios, [&](double v) { return (v - below) / below; }) >= odds;
        if (not_above && not_below) {
            lse = {shift + std::log(middle), question.eps};
            return Status::done;
        }
        draws = std::max<int64_t>(64, static_cast<int64_t>(ratios.size()) / 2);
    }
    return Status::dear;
}

}  // namespace headlong
