// AdaptiveSoftmax as published, stage for stage that of engines/adaptive/published.py.
#include "adaptive/search.h"

#include <algorithm>
#include <cmath>

#include "adaptive/prefixes.h"
#include "runtime/pool.h"

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

// One query, and one state of its samples: no stage reads anew what another has read.
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
    State state;
    int64_t warm = 0;  // the length of the warm-up's prefix

    Search(const ColumnReader& from, const PublishedRules& how, const uint8_t* allowed, double delta, double classes,
           const double* x, uint64_t seed, uint64_t key, int threads)
        : reader(from), rules(how), mask(allowed), stage(delta), logs(std::log(6 * classes / delta)),
          prefixes(from, x, seed, key, how.warm, threads), floats(2 * from.padded), ints(from.padded), half(from.padded) {
        state = {floats.data(), floats.data() + from.padded, ints.data(), {}};
        std::fill_n(state.est, 2 * from.padded, 0.f);
        std::fill_n(state.pulls, from.padded, 0);
        state.ends.variance = prefixes.size() > 0 ? std::numeric_limits<float>::infinity() : 0.f;
        live.assign(prefixes.groups(), 0);
        for (int64_t i = 0; i < from.vocab; ++i)
            live[i / kGroup] |= static_cast<uint64_t>(mask == nullptr || mask[i] != 0) << i % kGroup;
    }

    void warm_up();
    std::vector<int64_t> best_arms();
    Arms narrowed(const Arms& arms, double floor, double square);
    std::vector<double> score(const std::vector<int64_t>& best, const double* hidden);
    void sharpen(const std::vector<int64_t>& best, double target);
    void weigh(double& alpha, double& gamma);
    float refine(double alpha, double gamma, int64_t& pulls);
    double normaliser(float peak);
};

// All classes together to the variance that the weights need, as far as the warm-up may read.
void Search::warm_up() {
    if (prefixes.size() == 0) prefixes.pull(state, live, 0);
    warm = prefixes.together(state, live, 0, 1 / (17 * logs), rules.sum, prefixes.most());
}

// Classes whose upper end reaches the floor: est + sqrt(square * var) >= floor.
Arms Search::narrowed(const Arms& arms, double floor, double square) {
    Arms keep(arms.size(), 0);
    prefixes.over_groups(arms, [&](Tile&, int64_t group) {
        Ends ends;
        each_arm(arms[group], [&](int64_t i) {
            const int64_t id = group * kGroup + i;
            const double gap = floor - state.est[id];
            if (!(gap <= 0 || square * state.var[id] >= gap * gap)) return;
            keep[group] |= uint64_t{1} << i;
            ends.join({state.var[id], state.est[id], group, group});
        });
        prefixes.ends(group) = ends;
    });
    return keep;
}

// Goes on from the samples of the warm-up.
std::vector<int64_t> Search::best_arms() {
    const int64_t size = prefixes.size();
    const double spread = std::max(std::log(static_cast<double>(std::max<int64_t>(size, 2))), 1.0);
    Arms arms = live;
    int64_t count = count_of(arms), m = warm;
    const double square = 2 * rules.arm * std::log(6 * static_cast<double>(count) * spread / stage);
    double target = rules.width / 4;
    while (count > rules.k) {
        m = prefixes.together(state, arms, m, target, rules.arm, size);
        const double floor = state.ends.estimate - std::sqrt(square * state.var[state.ends.best]);
        Arms keep = narrowed(arms, floor, square);
        const int64_t kept = count_of(keep);
        if (kept <= rules.k || m >= size) break;
        if (kept == count && !(state.ends.variance > 0)) break;  // ties, of rows that are 0 so far
        if (kept < count) arms = std::move(keep), count = kept, state.ends = prefixes.ends_of(state, arms);
        target /= 2;
    }
    std::vector<int64_t> ids;
    for (int64_t group = 0; group < prefixes.groups(); ++group)
        each_arm(arms[group], [&](int64_t i) { ids.push_back(group * kGroup + i); });
    const size_t k = std::min<size_t>(ids.size(), rules.k);
    if (k < ids.size())
        std::partial_sort(ids.begin(), ids.begin() + k, ids.end(), [&](int64_t a, int64_t b) {
            return state.est[a] > state.est[b] || (state.est[a] == state.est[b] && a < b);
        });
    ids.resize(k);
    return ids;
}

// The winners' values, exactly: from here on their variance is 0.
std::vector<double> Search::score(const std::vector<int64_t>& best, const double* hidden) {
    std::vector<double> values;
    for (const int64_t i : best) {
        values.push_back(reader.link_a * reader.logit(hidden, i) + reader.link_b);
        state.est[i] = static_cast<float>(values.back());
        state.var[i] = 0;
        state.pulls[i] = static_cast<int32_t>(prefixes.size());
    }
    return values;
}

// The winners together until no variance is above the target.
void Search::sharpen(const std::vector<int64_t>& best, double target) {
    Arms arms(prefixes.groups(), 0);
    int64_t m = 0;
    state.ends = Ends{};
    for (const int64_t i : best) {
        arms[i / kGroup] |= uint64_t{1} << i % kGroup;
        state.ends.join({state.var[i], state.est[i], i, i});
        m = std::max<int64_t>(m, state.pulls[i]);
    }
    prefixes.together(state, arms, m, target, rules.sum, prefixes.size());
}

// The weights of all classes for the normaliser, from the lower ends of the samples as they are now, and their sums. The
// winner has no width, so beside a score that is exact all other weights are lower ends.
void Search::weigh(double& alpha, double& gamma) {
    std::vector<double> alphas(prefixes.groups(), 0), gammas(prefixes.groups(), 0);
    std::vector<float> tops(prefixes.groups(), -std::numeric_limits<float>::infinity());
    const float square = static_cast<float>(2 * logs * rules.sum);
    prefixes.over_groups(live, [&](Tile&, int64_t group) {
        const int64_t first = group * kGroup;
        for (int64_t id = first; id < first + kGroup; ++id) half[id] = state.est[id] - std::sqrt(square * state.var[id]);
        each_arm(~live[group], [&](int64_t i) { half[first + i] = -std::numeric_limits<float>::infinity(); });
        tops[group] = reader.column->largest(&half[first], kGroup);
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
        prefixes.each(tile, state, group, live[group], limits);
        int64_t read = 0;
        each_arm(live[group], [&](int64_t i) {
            peaks[group] = std::max(peaks[group], state.est[group * kGroup + i]);
            read += state.pulls[group * kGroup + i];
        });
        total.fetch_add(read, std::memory_order_relaxed);
    });
    pulls = total.load();
    return *std::max_element(peaks.begin(), peaks.end());
}

double Search::normaliser(float peak) {
    if (!(peak > -kInf)) return -kInf;
    for (int64_t group = 0; group < prefixes.groups(); ++group)
        each_arm(~live[group], [&](int64_t i) { state.est[group * kGroup + i] = -std::numeric_limits<float>::infinity(); });
    std::fill_n(state.var, reader.padded, 0.f);  // no radii
    Kernels::Sums sums{0, 0, 0, 0};
    reader.kernels->interval_sums(state.est, state.var, reader.padded, 0.f, Link{LinkForm::affine, 1.f, 0.f}, 1.f, peak, &sums, 0.f, nullptr);
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
    search.warm_up();
    const std::vector<int64_t> best = search.best_arms();
    std::vector<double> values;
    if (rules.exact) {
        values = search.score(best, hidden);
        answer.rows = static_cast<int64_t>(best.size());
    } else {
        search.sharpen(best, eps * eps / (32 * std::log(2 / stage)));
    }
    double alpha, gamma;
    search.weigh(alpha, gamma);
    const float peak = search.refine(alpha, gamma, answer.pulls);
    for (size_t a = 0; a < best.size(); ++a)
        answer.best.push_back({best[a], rules.exact ? values[a] : static_cast<double>(search.state.est[best[a]])});
    std::sort(answer.best.begin(), answer.best.end(), better);
    answer.lse = search.normaliser(peak);
    answer.bytes = search.prefixes.bytes() + static_cast<double>(answer.rows * dim * item_bytes(kind));
    if (estimates != nullptr) std::copy_n(search.state.est, vocab, estimates);
    return answer;
}

}  // namespace headlong
