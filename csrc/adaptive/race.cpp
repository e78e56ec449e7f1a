// The race that can be trusted: blocks of coordinates for all classes, intervals after each look, exact rows at the end.
//
//   |z_i - est_i| <= rad_i     sure        ‖B_i[unread]‖ ‖x[unread]‖
//                              calibrated  factor times that
//                              bernstein   the narrower of it and the allowance of an evenly drawn sample of the rest
//
// Rounding is in every radius. What a few rows cannot decide comes back as `finish_densely` and is read densely by the caller.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "adaptive/search.h"
#include "runtime/pool.h"

namespace headlong {
namespace {

constexpr double kUnit = 0x1p-24;     // of float32
constexpr double kRowCost = 3;        // a gathered row costs about three scanned ones
constexpr int kDrawLooks = 12;        // times that the sampled normaliser is looked at
const double kKappa = 7.0 / 3 + 3 / std::sqrt(2.0);

struct ReadingOrder {
    std::vector<int64_t> order;  // blocks, the first `heavy` by weight
    std::vector<int64_t> looks;  // how many of them after each look
    std::vector<double> lengths; // ‖x_b‖
    int64_t heavy = 0;
};

ReadingOrder reading_order(const ColumnReader& reader, const double* x, uint64_t seed, uint64_t key, const RaceRules& rules) {
    ReadingOrder plan;
    const int64_t blocks = reader.blocks();
    plan.lengths.resize(blocks);
    std::vector<double> weight(blocks);
    for (int64_t b = 0; b < blocks; ++b) {
        double square = 0;
        for (int64_t j = b * kColumns; j < std::min(reader.rotated_dim, (b + 1) * kColumns); ++j) square += x[j] * x[j];
        plan.lengths[b] = std::sqrt(square);
        weight[b] = plan.lengths[b] * reader.column_weight[b];
    }
    plan.order.resize(blocks);
    std::iota(plan.order.begin(), plan.order.end(), 0);
    std::stable_sort(plan.order.begin(), plan.order.end(), [&](int64_t a, int64_t b) { return weight[a] > weight[b]; });
    plan.heavy = blocks;
    if (rules.widths == 2) {
        plan.heavy = (blocks + 15) / 16;
        std::vector<uint32_t> words((blocks + 3) / 4 * 4);
        reader.kernels->noise(seed, key, 1, 0, static_cast<int64_t>(words.size()), words.data());
        std::sort(plan.order.begin() + plan.heavy, plan.order.end(),
                  [&](int64_t a, int64_t b) { return words[a] < words[b] || (words[a] == words[b] && a < b); });
    }
    for (int64_t part : {16, 8, 4, 2}) {
        const int64_t m = (blocks + part - 1) / part;
        if (m < blocks && (plan.looks.empty() || m > plan.looks.back())) plan.looks.push_back(m);
    }
    return plan;
}

struct Race {
    const ColumnReader& reader;
    const double* hidden;
    const uint8_t* mask;
    const RaceRules& rules;
    int threads;
    const ReadingOrder plan;
    std::vector<float> x;
    double x_norm, h_norm, shared;
    std::vector<float> sum, sampled, square, read;  // of the heavy blocks, of the sampled ones, their squares, ‖B_i[read]‖^2
    std::vector<float> est, rad;
    float top = 0, most = 0;
    bool finite = true;

    void look(int64_t from, int64_t to) {
        const int64_t padded = reader.padded;
        const WidthRule common = rule(to);
        std::vector<float> tops(padded / 512 + 1, -std::numeric_limits<float>::infinity()), mosts(tops.size(), 0.f);
        std::vector<uint8_t> good(tops.size(), 1);
        over_strips(padded, threads, [&](int64_t first, int64_t n) {
            for (int64_t at = first; at < first + n; at += 512) {
                const int64_t size = std::min<int64_t>(512, first + n - at);
                for (int64_t i = from; i < to; ++i) {
                    const int64_t b = plan.order[i], start = b * kColumns;
                    const bool chance = i >= plan.heavy;
                    reader.column->block(static_cast<const float*>(reader.columns) + start * padded, padded, &x[start],
                                         std::min(kColumns, reader.rotated_dim - start), at, size,
                                         (chance ? sampled.data() : sum.data()) + at, chance ? square.data() + at : nullptr);
                    const float* squares = reader.squares + b * padded + at;
                    for (int64_t c = 0; c < size; ++c) read[at + c] += squares[c];
                }
                good[at / 512] = widths(common, at, size);
                tops[at / 512] = reader.column->largest(&est[at], size);
                mosts[at / 512] = reader.column->largest(&rad[at], size);
            }
        });
        top = *std::max_element(tops.begin(), tops.end());
        most = *std::max_element(mosts.begin(), mosts.end());
        finite = std::all_of(good.begin(), good.end(), [](uint8_t value) { return value != 0; });
    }

    // What the radii after m blocks have in common.
    WidthRule rule(int64_t m) const {
        const int64_t drawn = std::max<int64_t>(0, m - plan.heavy), population = reader.blocks() - plan.heavy;
        double left = 0, longest = 0;
        for (int64_t at = m; at < reader.blocks(); ++at) left += plan.lengths[plan.order[at]] * plan.lengths[plan.order[at]];
        for (int64_t at = plan.heavy; at < reader.blocks(); ++at) longest = std::max(longest, plan.lengths[plan.order[at]]);
        WidthRule rule{};
        rule.shared = shared;
        rule.factor = rules.widths == 1 ? rules.factor : 1.0;
        rule.left = std::sqrt(left) * (1 + 1e-12);
        rule.unit = static_cast<double>(m + 32) * kUnit;
        rule.by_size = (rule.unit + 0x1p-22 + reader.lost) * x_norm;
        rule.fixed = reader.lost * reader.most_norm * h_norm + 0x1p-22 * std::fabs(shared) + 0x1p-120 * x_norm + 0x1p-100;
        if (rules.widths != 2 || drawn < 2) return rule;
        const double rho = 2 * drawn <= population ? 1 - (drawn - 1.0) / population
                                                   : (1 - static_cast<double>(drawn) / population) * (1 + 1.0 / drawn);
        rule.drawn = static_cast<double>(drawn);
        rule.population = static_cast<double>(population);
        rule.by_spread = rule.population * std::sqrt(2 * rho * rules.odds / rule.drawn);
        rule.by_peak = rule.population * kKappa * 2 * longest * rules.odds / rule.drawn;
        rule.by_drawn = rule.population / rule.drawn * rule.unit * x_norm;
        return rule;
    }

    // False where an estimate is no number that float32 can be trusted with.
    bool widths(const WidthRule& common, int64_t first, int64_t n) {
        const WidthArrays from{reader.base, reader.size, reader.peak, read.data(), sum.data(), sampled.data(), square.data()};
        const bool fine = reader.column->widths(common, from, first, n, est.data(), rad.data());
        for (int64_t i = first; i < first + n; ++i) {
            if (mask == nullptr) i = std::max(i, reader.vocab);
            if (i >= first + n || (i < reader.vocab && mask[i] != 0)) continue;
            est[i] = -std::numeric_limits<float>::infinity();
            rad[i] = 0;
        }
        return fine;
    }

    // The k-th largest lower end; -inf where there are fewer classes.
    float threshold() const {
        if (rules.k == 0) return std::numeric_limits<float>::infinity();
        std::vector<float> heap;
        const size_t k = rules.k;
        const auto above = std::greater<float>();
        float low[512], floor = -std::numeric_limits<float>::infinity();
        for (int64_t at = 0; at < reader.padded; at += 512) {
            const int64_t found = reader.kernels->lower_above(&est[at], &rad[at], std::min<int64_t>(512, reader.padded - at), floor, low);
            for (int64_t i = 0; i < found; ++i) {
                if (heap.size() == k && !(low[i] > heap.front())) continue;
                if (heap.size() == k) {
                    std::pop_heap(heap.begin(), heap.end(), above);
                    heap.pop_back();
                }
                heap.push_back(low[i]);
                std::push_heap(heap.begin(), heap.end(), above);
            }
            if (heap.size() == k) floor = heap.front();
        }
        return heap.size() < k ? -std::numeric_limits<float>::infinity() : heap.front();
    }

    // Classes whose upper end reaches the threshold.
    void reaching(float tau, std::vector<int32_t>& open) const {
        int32_t ids[512];
        float kept[512], upper[512];
        open.clear();
        for (int64_t at = 0; at < reader.padded && rules.k > 0; at += 512) {
            const int64_t n = std::min<int64_t>(512, reader.padded - at);
            const int64_t found = reader.kernels->survivors(&est[at], &rad[at], n, tau, static_cast<int32_t>(at), ids, kept, upper);
            for (int64_t i = 0; i < found; ++i)
                if (kept[i] > -std::numeric_limits<float>::infinity()) open.push_back(ids[i]);
        }
    }

    Kernels::Sums sums(float shift) const {
        std::vector<Kernels::Sums> parts(reader.padded / 512 + 1, Kernels::Sums{0, 0, 0, 0});
        over_strips(reader.padded, threads, [&](int64_t first, int64_t n) {
            for (int64_t at = first; at < first + n; at += 512) {
                const int64_t size = std::min<int64_t>(512, first + n - at);
                float wide = 0;
                for (int64_t c = at; c < at + size; ++c) wide = std::max(wide, rad[c]);
                reader.kernels->interval_sums(&est[at], &rad[at], size, wide, reader.link, 1.f, shift, &parts[at / 512], 0.f, nullptr);
            }
        });
        Kernels::Sums all{0, 0, 0, 0};
        for (const Kernels::Sums& part : parts) {
            all.low += part.low;
            all.high += part.high;
            all.centre += part.centre;
        }
        return all;
    }

    // What float32 exponentials and float64 dot products add to an error of the normaliser.
    double fixed(double shift) const {
        const double cap = reader.link.form == LinkForm::softcap ? reader.link_a * 0x1p-19 : 0;
        return (std::fabs(shift) + 64) * 0x1p-22 + cap +
               static_cast<double>(reader.dim + 8) * 0x1p-53 * (reader.most_norm * h_norm + 1) * slope();
    }
    double slope() const { return reader.link.form == LinkForm::affine ? reader.link_a : 1; }
    double row_bytes() const { return static_cast<double>(reader.dim) * item_bytes(reader.kind); }
};

// Exact scores of every class whose upper end reaches the k-th best; est and rad then hold them.
void score_best(Race& race, float tau, const std::vector<int32_t>& open, RaceAnswer& answer) {
    const size_t k = race.rules.k;
    std::vector<int32_t> order = open;
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return race.est[a] > race.est[b] || (race.est[a] == race.est[b] && a < b);
    });
    std::vector<Scored> scored;
    const auto score = [&](int32_t i) { scored.push_back({i, race.reader.logit(race.hidden, i)}); };
    const size_t first = std::min(k, order.size());
    for (size_t at = 0; at < first; ++at) score(order[at]);
    order.erase(order.begin(), order.begin() + static_cast<int64_t>(first));
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return race.est[a] + race.rad[a] > race.est[b] + race.rad[b];
    });
    std::sort(scored.begin(), scored.end(), better);
    double floor = scored.size() == k ? std::max<double>(scored.back().z, tau) : tau;
    std::vector<Scored> best = scored;
    for (int32_t i : order) {
        if (static_cast<double>(race.est[i]) + race.rad[i] < floor) break;
        score(i);
        best.insert(std::upper_bound(best.begin(), best.end(), scored.back(), better), scored.back());
        if (best.size() > k) best.pop_back();
        if (best.size() == k) floor = std::max(floor, best.back().z);
    }
    for (const Scored& s : scored) {
        race.est[s.id] = static_cast<float>(s.z);
        race.rad[s.id] = static_cast<float>(std::fabs(s.z) * 0x1p-23 + 0x1p-100);
    }
    answer.rows += static_cast<int64_t>(scored.size());
    answer.best = best;
}

double half_width(double low, double high) { return low > 0 ? std::log(high / low) / 2 : kInf; }

// What rows are drawn by: the upper ends of the classes, their sums up to every strip of 512, and the keys of the noise.
struct RestDraw { const std::vector<float>& high; const std::vector<double>& before; float shift; uint64_t seed, key; };

// Draws `first` .. stop - 1, each a class in proportion to its upper end: its term in units of that end.
std::vector<double> draw_ratios(const Race& race, const RestDraw& from, int64_t first, int64_t stop) {
    const ColumnReader& reader = race.reader;
    const int64_t padded = reader.padded, strips = static_cast<int64_t>(from.before.size()) - 1, count = stop - first;
    std::vector<uint32_t> words(2 * count);
    reader.kernels->noise(from.seed, from.key, 2, 2 * first, 2 * count, words.data());
    std::vector<double> ratio(count);
    const int parts = count >= 256 ? race.threads : 1;
    run_parallel(parts, [&](int t) {
        for (int64_t r = t; r < count; r += parts) {
            const double u = (static_cast<double>(words[2 * r]) + (words[2 * r + 1] + 0.5) * 0x1p-32) * 0x1p-32 * from.before[strips];
            const int64_t strip = std::min<int64_t>(
                strips - 1, std::upper_bound(from.before.begin(), from.before.end(), u) - from.before.begin() - 1);
            int64_t i = strip * 512, last = -1;
            double at = from.before[strip];
            for (const int64_t end = std::min(padded, i + 512); i < end; ++i) {
                if (from.high[i] <= 0) continue;
                last = i;
                at += from.high[i];
                if (at > u) break;
            }
            if (last >= 0)
                ratio[r] = std::min(1.0, std::exp(reader.linked(reader.logit(race.hidden, last)) - from.shift) / from.high[last]);
        }
    });
    return ratio;
}

// The mass of the classes that were not scored, from rows drawn in proportion to their upper ends: every ratio is in
// (0, 1], so an empirical-Bernstein interval holds however wide the radii are. True once the normaliser is within eps.
bool sample_rest(Race& race, const std::vector<uint8_t>& known, double exact, float shift, uint64_t seed, uint64_t key,
                 RaceAnswer& answer) {
    const ColumnReader& reader = race.reader;
    const int64_t padded = reader.padded, strips = (padded + 511) / 512;
    std::vector<float> low(padded), high(padded);
    std::vector<double> before(strips + 1, 0);
    over_strips(padded, race.threads, [&](int64_t first, int64_t n) {
        reader.kernels->interval_exps(&race.est[first], &race.rad[first], n, reader.link, 1.f, shift, &low[first], &high[first]);
        for (int64_t at = first; at < first + n; at += 512) {
            double total = 0;
            for (int64_t i = at; i < std::min(at + 512, first + n); ++i) {
                if (known[i]) high[i] = 0;
                total += high[i];
            }
            before[at / 512 + 1] = total;
        }
    });
    for (int64_t s = 0; s < strips; ++s) before[s + 1] += before[s];
    const double total = before[strips], error = race.fixed(shift), aim = race.rules.eps - error;
    if (aim <= 0) return false;
    const double odds = std::log(3.0 * kDrawLooks / race.rules.delta);
    const int64_t limit = std::max<int64_t>(64, static_cast<int64_t>(race.rules.share * static_cast<double>(reader.vocab)));
    double mean = 0, squares = 0;
    int64_t count = 0;
    for (int step = 0; step < kDrawLooks; ++step) {
        const int64_t goal = int64_t{64} << step;
        if (goal > limit) break;
        const std::vector<double> ratio = draw_ratios(race, {high, before, shift, seed, key}, count, goal);
        for (double value : ratio) {
            mean += value;
            squares += value * value;
        }
        count = goal;
        answer.rows += static_cast<int64_t>(ratio.size());
        const double average = mean / count, spread = std::max(0.0, squares / count - average * average);
        const double off = std::sqrt(2 * spread * odds / count) + 3 * odds / count;
        const double bottom = exact + total * std::max(0.0, average - off), peak = exact + total * std::min(1.0, average + off);
        if (half_width(bottom, peak) <= aim) {
            answer.lse = shift + (std::log(bottom) + std::log(peak)) / 2;
            answer.error = half_width(bottom, peak) + error;
            return true;
        }
    }
    return false;
}

// How many rows a sampled normaliser would take, from what the intervals say.
double draws_needed(const RaceRules& rules, const Kernels::Sums& sums) {
    if (!(rules.delta > 0) || !(sums.low > 0) || !std::isfinite(sums.high)) return kInf;
    const double odds = std::log(3.0 * kDrawLooks / rules.delta), width = std::log(sums.high / sums.low);
    return std::max(64.0, odds * (3 * std::exp(width / 2) / rules.eps + width * width / (8 * rules.eps * rules.eps)));
}

// The normaliser from the intervals, and, where they are too wide for eps, from a sample; without an eps as they leave it.
void settle_normaliser(Race& race, uint64_t seed, uint64_t key, RaceAnswer& answer) {
    const ColumnReader& reader = race.reader;
    if (std::isinf(race.rules.eps)) {
        const double top = reader.linked(race.top);
        const Kernels::Sums sums = race.sums(static_cast<float>(top));
        const double open_error = half_width(sums.low, sums.high) + race.fixed(top);
        const bool known = open_error < 20;
        answer.lse = top + (known ? (std::log(sums.low) + std::log(sums.high)) / 2 : std::log(sums.centre));
        answer.error = known ? open_error : kInf;
        return;
    }
    const float shift = static_cast<float>(reader.linked(answer.best.empty() ? race.top : std::max<double>(race.top, answer.best[0].z)));
    const Kernels::Sums sums = race.sums(shift);
    answer.lse = shift + (std::log(sums.low) + std::log(sums.high)) / 2;
    answer.error = half_width(sums.low, sums.high) + race.fixed(shift);
    if (answer.error <= race.rules.eps) return;
    std::vector<uint8_t> known(reader.padded, 0);
    double exact = 0;
    for (int64_t i = 0; i < reader.padded; ++i) known[i] = !(race.est[i] > -kInf);
    for (const Scored& s : answer.best) {
        known[s.id] = 1;
        exact += std::exp(reader.linked(s.z) - shift);
    }
    answer.finish_densely = !(race.rules.delta > 0) || !sample_rest(race, known, exact, shift, seed, key, answer);
}

}  // namespace

RaceAnswer ColumnReader::race(const double* x, const double* hidden, double shared, const uint8_t* mask, uint64_t seed,
                              uint64_t key, const RaceRules& rules, int threads) const {
    RaceAnswer answer;
    Race race{*this, hidden, mask, rules, threads, reading_order(*this, x, seed, key, rules), {}, 0, 0, shared,
              {}, {}, {}, {}, {}, {}};
    double square = 0;
    for (int64_t j = 0; j < rotated_dim; ++j) square += x[j] * x[j];
    race.x_norm = std::sqrt(square);
    square = 0;
    for (int64_t j = 0; j < dim; ++j) square += hidden[j] * hidden[j];
    race.h_norm = std::sqrt(square);
    race.x.assign(x, x + rotated_dim);
    for (auto* part : {&race.sum, &race.sampled, &race.square, &race.read, &race.est, &race.rad}) part->assign(padded, 0.f);

    int64_t done = 0;
    float tau = 0;
    std::vector<int32_t> open;
    Kernels::Sums sums{0, 0, 0, 0};
    const double column_bytes = static_cast<double>(padded * kColumns) * 4.25;
    bool ready = false;
    for (size_t step = 0; step < race.plan.looks.size() && !ready; ++step) {
        const int64_t m = race.plan.looks[step];
        race.look(done, m);
        answer.bytes += static_cast<double>(m - done) * column_bytes + static_cast<double>(padded) * 12;
        done = m;
        if (!race.finite || !(race.top > -kInf)) break;
        tau = race.threshold();
        race.reaching(tau, open);
        double rows = static_cast<double>(open.size());
        if (!std::isinf(rules.eps)) {
            sums = race.sums(static_cast<float>(linked(race.top)));
            if (!(half_width(sums.low, sums.high) + race.fixed(linked(race.top)) <= rules.eps)) rows += draws_needed(rules, sums);
        }
        const int64_t next = step + 1 < race.plan.looks.size() ? race.plan.looks[step + 1] : blocks();
        ready = rows * kRowCost * race.row_bytes() <= static_cast<double>(next - m) * column_bytes;
    }
    answer.entries = std::min(rotated_dim, done * kColumns) * vocab;
    if (!ready || race.most * race.slope() > 40.f) {
        answer.finish_densely = true;
        return answer;
    }
    if (rules.k > 0) score_best(race, tau, open, answer);
    settle_normaliser(race, seed, key, answer);
    answer.entries += answer.rows * dim;
    answer.bytes += static_cast<double>(answer.rows) * race.row_bytes();
    return answer;
}

}  // namespace headlong
