// AdaptiveSoftmax as published, stage for stage that of engines/bandit_published.py.
#include "adaptive/search.h"

#include <algorithm>
#include <cmath>

#include "runtime/pool.h"
#include "adaptive/prefixes.h"

namespace headlong {

void over_strips(int64_t padded, int threads, const std::function<void(int64_t, int64_t)>& work) {
    const int64_t strips = (padded + 511) / 512;
    const int parts = static_cast<int>(std::min<int64_t>(threads, std::max<int64_t>(1, strips / 4)));
    run_parallel(parts, [&](int t) {
        const int64_t first = strips * t / parts * 512, last = std::min(padded, strips * (t + 1) / parts * 512);
        if (first < last) work(first, last - first);
    });
}

double ColumnReader::logit(const double* hidden, int64_t id) const {
    double z;
    kernels->dot_rows(weight, kind, dim, &id, 1, hidden, &z);
    if (bias != nullptr) z += bias[id];
    return std::isfinite(z) ? z : -kInf;  // a damaged row is no rival
}

namespace {

// One query. The race and the warm-up keep their own estimates: each has a multiplier of its own.
struct Search {
    const ColumnReader& reader;
    const PublishedRules& rules;
    const uint8_t* mask;
    const double stage, logs;  // delta', ln(6 V / delta')
    Prefixes prefixes;
    Arms live;
    Scratch<float> floats;
    Scratch<int32_t> ints;
    Scratch<float> half;  // exp(half the lower end of a class's logit): the square root of its weight in the normaliser
    State race, sum;
    int64_t first_widest = -1;

    Search(const ColumnReader& from, const PublishedRules& how, const uint8_t* allowed, double delta, double classes,
           const double* x, uint64_t seed, uint64_t key, int threads)
        : reader(from), rules(how), mask(allowed), stage(delta), logs(std::log(6 * classes / delta)),
          prefixes(from, x, seed, key, how.warm, threads), floats(4 * from.padded), ints(2 * from.padded), half(from.padded) {
        race = {floats.data(), floats.data() + from.padded, ints.data(), {}};
        sum = {race.est + 2 * from.padded, race.est + 3 * from.padded, ints.data() + from.padded, {}};
        std::fill_n(race.est, 4 * from.padded, 0.f);
        std::fill_n(race.pulls, 2 * from.padded, 0);
        race.ends.variance = sum.ends.variance = prefixes.size() > 0 ? std::numeric_limits<float>::infinity() : 0.f;
        live.assign(prefixes.groups(), 0);
        for (int64_t i = 0; i < from.vocab; ++i)
            live[i / kGroup] |= static_cast<uint64_t>(mask == nullptr || mask[i] != 0) << i % kGroup;
    }

    std::vector<int64_t> best_arms();
    Arms narrowed(const Arms& arms, double floor, double square);
    void warm_up();
    void weigh(double& alpha, double& gamma);
    float refine(double alpha, double gamma, int64_t& pulls);
    double normaliser(float peak);
};

// Classes whose upper end reaches the floor: est + sqrt(square * var) >= floor.
Arms Search::narrowed(const Arms& arms, double floor, double square) {
    Arms keep(arms.size(), 0);
    prefixes.over_groups(arms, [&](Tile&, int64_t group) {
        Ends ends;
        each_arm(arms[group], [&](int64_t i) {
            const int64_t id = group * kGroup + i;
            const double gap = floor - race.est[id];
            if (!(gap <= 0 || square * race.var[id] >= gap * gap)) return;
            keep[group] |= uint64_t{1} << i;
            ends.join({race.var[id], race.est[id], group, group});
        });
        prefixes.ends(group) = ends;
    });
    return keep;
}

std::vector<int64_t> Search::best_arms() {
    const int64_t size = prefixes.size();
    const double spread = std::max(std::log(static_cast<double>(std::max<int64_t>(size, 2))), 1.0);
    Arms arms = live;
    int64_t count = count_of(arms), m = 0;
    const double square = 2 * rules.arm * std::log(6 * static_cast<double>(count) * spread / stage);
    double target = rules.width / 4;
    if (size == 0) prefixes.pull(race, arms, 0);
    while (count > rules.k) {
        m = prefixes.together(race, arms, m, target, rules.arm, size);
        if (first_widest < 0) first_widest = race.ends.widest;
        const double floor = race.ends.estimate - std::sqrt(square * race.var[race.ends.best]);
        Arms keep = narrowed(arms, floor, square);
        const int64_t kept = count_of(keep);
        if (kept <= rules.k || m >= size) break;
        if (kept == count && !(race.ends.variance > 0)) break;  // ties, of rows that are 0 so far
        if (kept < count) arms = std::move(keep), count = kept, race.ends = prefixes.ends_of(race, arms);
        target /= 2;
    }
    std::vector<int64_t> ids;
    for (int64_t group = 0; group < prefixes.groups(); ++group)
        each_arm(arms[group], [&](int64_t i) { ids.push_back(group * kGroup + i); });
    const size_t k = std::min<size_t>(ids.size(), rules.k);
    if (k < ids.size())
        std::partial_sort(ids.begin(), ids.begin() + k, ids.end(), [&](int64_t a, int64_t b) {
            return race.est[a] > race.est[b] || (race.est[a] == race.est[b] && a < b);
        });
    ids.resize(k);
    return ids;
}

// All classes to the variance that the weights need. What the race read besides stays read.
void Search::warm_up() {
    sum.ends.widest = first_widest;
    if (prefixes.size() == 0) prefixes.pull(sum, live, 0);
    prefixes.together(sum, live, 0, 1 / (17 * logs), rules.sum, prefixes.most());
}

// The weights of all classes for the normaliser, from the warm-up's lower ends, and their sums.
void Search::weigh(double& alpha, double& gamma) {
    std::vector<double> alphas(prefixes.groups(), 0), gammas(prefixes.groups(), 0);
    std::vector<float> tops(prefixes.groups(), -std::numeric_limits<float>::infinity());
    const float square = static_cast<float>(2 * logs * rules.sum);
    prefixes.over_groups(live, [&](Tile&, int64_t group) {
        const int64_t first = group * kGroup;
        for (int64_t id = first; id < first + kGroup; ++id) half[id] = sum.est[id] - std::sqrt(square * sum.var[id]);
        each_arm(~live[group], [&](int64_t i) { half[first + i] = -std::numeric_limits<float>::infinity(); });
        tops[group] = reader.column->largest(&half[first], kGroup);
        for (int64_t id = first; id < first + kGroup; ++id)
            if (race.pulls[id] > sum.pulls[id])
                sum.est[id] = race.est[id], sum.var[id] = race.var[id], sum.pulls[id] = race.pulls[id];
    });
    const float top = *std::max_element(tops.begin(), tops.end());
    prefixes.over_groups(live, [&](Tile&, int64_t group) {
        const float none[kGroup] = {};
        float low[kGroup];
        float* root = &half[group * kGroup];
        reader.kernels->interval_exps(root, none, kGroup, Link{LinkForm::affine, 1.f, 0.f}, 0.5f, top / 2, low, root);
        each_arm(~live[group], [&](int64_t i) { root[i] = 0; });
        for (int64_t i = 0; i < kGroup; ++i) {
            gammas[group] += root[i];
            alphas[group] += static_cast<double>(root[i]) * root[i];
        }
    });
    alpha = gamma = 0;
    for (size_t group = 0; group < tops.size(); ++group) alpha += alphas[group], gamma += gammas[group];
}

// Every class to min(sum(gamma) / (c1 gamma_i), sum(alpha) / (c2 alpha_i)); returns the largest estimate.
float Search::refine(double alpha, double gamma, int64_t& pulls) {
    const double second = 16 * std::sqrt(2.0) * logs / rules.eps * gamma * gamma / alpha;
    const double first = 16 * std::log(12 / stage) / (rules.eps * rules.eps);
    // limits of the variance itself, before its multiplier
    const float by_gamma = static_cast<float>(gamma / second / rules.sum), by_alpha = static_cast<float>(alpha / first / rules.sum);
    std::vector<float> peaks(prefixes.groups(), -std::numeric_limits<float>::infinity());
    std::atomic<int64_t> total{0};
    prefixes.over_groups(live, [&](Tile& tile, int64_t group) {
        const float* root = &half[group * kGroup];
        float limits[kGroup];
        for (int64_t i = 0; i < kGroup; ++i) {
            const float inverse = 1.f / root[i];  // a class that takes no part has the weight 0
            limits[i] = inverse * std::min(by_gamma, by_alpha * inverse);
        }
        prefixes.each(tile, sum, group, live[group], limits);
        int64_t read = 0;
        each_arm(live[group], [&](int64_t i) {
            peaks[group] = std::max(peaks[group], sum.est[group * kGroup + i]);
            read += sum.pulls[group * kGroup + i];
        });
        total.fetch_add(read, std::memory_order_relaxed);
    });
    pulls = total.load();
    return *std::max_element(peaks.begin(), peaks.end());
}

double Search::normaliser(float peak) {
    if (!(peak > -kInf)) return -kInf;
    for (int64_t group = 0; group < prefixes.groups(); ++group)
        each_arm(~live[group], [&](int64_t i) { sum.est[group * kGroup + i] = -std::numeric_limits<float>::infinity(); });
    std::fill_n(race.est, reader.padded, 0.f);  // no radii
    Kernels::Sums sums{0, 0, 0, 0};
    reader.kernels->interval_sums(sum.est, race.est, reader.padded, 0.f, Link{LinkForm::affine, 1.f, 0.f}, 1.f, peak, &sums);
    return peak + std::log(sums.centre);
}

}  // namespace

PublishedAnswer ColumnReader::published(const double* x, const double* hidden, const uint8_t* mask, uint64_t seed,
                                        uint64_t key, const PublishedRules& rules, int threads, float* estimates) const {
    std::vector<double> scaled(x, x + rotated_dim);
    for (double& value : scaled) value *= link_a;
    int64_t classes = vocab;
    if (mask != nullptr) classes = vocab - std::count(mask, mask + vocab, 0);
    const double stage = rules.delta / (rules.exact ? 2 : 3), eps = rules.exact ? rules.eps : rules.eps / 4;
    Search search(*this, rules, mask, stage, static_cast<double>(classes), scaled.data(), seed, key, threads);
    PublishedAnswer answer;
    answer.full = classes * search.prefixes.size();
    const std::vector<int64_t> best = search.best_arms();
    search.warm_up();
    double alpha, gamma;
    search.weigh(alpha, gamma);
    State& sum = search.sum;
    std::vector<double> values;
    if (rules.exact) {
        for (const int64_t i : best) {
            values.push_back(link_a * logit(hidden, i) + link_b);
            sum.est[i] = static_cast<float>(values.back());
            sum.var[i] = 0;
            sum.pulls[i] = static_cast<int32_t>(search.prefixes.size());
            ++answer.rows;
        }
    } else {
        Arms arms(search.prefixes.groups(), 0);
        int64_t m = 0;
        sum.ends = Ends{};
        for (const int64_t i : best) {
            arms[i / kGroup] |= uint64_t{1} << i % kGroup;
            sum.ends.join({sum.var[i], sum.est[i], i, i});
            m = std::max<int64_t>(m, sum.pulls[i]);
        }
        search.prefixes.together(sum, arms, m, eps * eps / (32 * std::log(2 / stage)), rules.sum, search.prefixes.size());
    }
    const float peak = search.refine(alpha, gamma, answer.pulls);
    for (size_t a = 0; a < best.size(); ++a)
        answer.best.push_back({best[a], rules.exact ? values[a] : static_cast<double>(sum.est[best[a]])});
    std::sort(answer.best.begin(), answer.best.end(), better);
    answer.lse = search.normaliser(peak);
    answer.bytes = search.prefixes.bytes() + static_cast<double>(answer.rows * dim * (kind == Kind::f32 ? 4 : 2));
    if (estimates != nullptr) std::copy_n(sum.est, vocab, estimates);
    return answer;
}

}  // namespace headlong
