// The filters of a sampler: top_k, top_p, min_p.
//
// They never sort V classes: the classes are taken in the order of their keys and the first that passes is the sample. min_p
// is a floor below the best logit; whether a class is in the nucleus of top_p depends on the mass of the classes better than
// it: see sampling/nucleus_from_intervals.cpp. The same filters where every logit is known: sampling/dense.cpp; where blocks find
// the best: reader/reader.cpp.
#include "executor/verbs.h"
#include "normaliser/draw_points.h"

namespace headlong {
namespace {

constexpr int64_t kFirst = 1;  // classes by key at first

}  // namespace

size_t nucleus_size(const std::vector<double>& mass, double target) {
    double before = 0;
    size_t size = 0;
    while (size < mass.size() && (size == 0 || before < target)) before += mass[size++];
    return size;
}

// Keeps of classes sorted by logit what top_p, then min_p leave; top_p = 1 and min_p = 0 keep all. `total`: the mass of all that top_p
// is of, in units of the first's; 0 where no others are.
std::vector<Scored> filtered(const Executor& e, std::vector<Scored> sorted, const SampleRule& rule, double total) {
    if (sorted.empty()) return sorted;
    const double beta = 1 / rule.temperature, most = e.linked(sorted[0].z) * beta;
    std::vector<double> mass;
    double sum = 0;
    for (const Scored& s : sorted) mass.push_back(std::exp(e.linked(s.z) * beta - most)), sum += mass.back();
    size_t keep = rule.top_p < 1 ? nucleus_size(mass, rule.top_p * (total > 0 ? total : sum)) : sorted.size();
    const double floor = rule.min_p > 0 ? std::log(rule.min_p) : -kInf;
    while (keep > 1 && e.linked(sorted[keep - 1].z) * beta - most < floor) --keep;
    sorted.resize(keep);
    return sorted;
}

Draw pick(const Executor& e, const std::vector<Scored>& kept, const SampleRule& rule, uint64_t row, uint32_t draw) {
    Draw out;
    for (const Scored& s : kept) {
        const double key = e.linked(s.z) / rule.temperature + gumbel(rule.seed, rule.row0 + row, draw, rule.name(s.id));
        if (out.id < 0 || key > out.score) out = {s.id, s.z, key, true};
    }
    return out;
}

// top_p and min_p over all classes.
bool draw_filtered(const Executor& e, Estimates& all, const Question& question, const SampleRule& rule, int threads, Draw* draws, Answer& answer) {
    std::vector<Scored> best;
    if (!find_best(e, all, question.k, threads, best, answer)) return false;
    if (best.empty()) return true;  // no class may be answered
    const double floor = rule.min_p > 0 ? e.linked(best[0].z) * question.beta + std::log(rule.min_p) : -kInf;
    // Where delta allows it, a bet decides; the decisions of a query share delta. What is better than a class inside is inside.
    const bool may_bet = question.delta > 0 && all.may_bet;
    const uint64_t key = may_bet ? key_of(all.hidden, e.dim, question.seed) : 0;
    Scored within = best[0], beyond{-1, -kInf};
    double decided = 0;
    bool proved = true, within_proved = true, beyond_proved = true;
    const auto in_nucleus = [&](const Scored& s, bool* inside) {
        if (rule.top_p >= 1 || s.id == best[0].id) return *inside = true, true;
        if (s.id == within.id || better(s, within)) return proved = proved && within_proved, *inside = true, true;
        if (beyond.id >= 0 && (s.id == beyond.id || better(beyond, s))) return proved = proved && beyond_proved, *inside = false, true;
        const double odds = may_bet ? (decided + 1) * (decided + 2) / question.delta : 0;
        const Side side = side_of_nucleus(e, all, question, rule.top_p, s, odds, mix(key + static_cast<uint64_t>(decided)), threads, answer);
        ++decided;
        (side.inside ? within : beyond) = s;
        (side.inside ? within_proved : beyond_proved) = side.proved;
        proved = proved && side.proved;
        return *inside = side.inside, side.known;
    };
    for (int i = 0; i < rule.n; ++i) {
        Keys keys;
        keys.draw = static_cast<uint32_t>(i);
        bool drawn = false;
        size_t seen = 0;
        proved = true;
        for (int64_t m = kFirst; !drawn; m *= 4) {
            std::vector<Keyed> first;
            if (!best_keys(e, all, rule, m, threads, keys, first, answer)) return false;
            for (; seen < first.size() && !drawn; ++seen) {
                const Keyed& next = first[seen];
                bool inside = false;
                if (e.linked(next.z) * question.beta < floor && next.id != best[0].id) continue;
                if (!in_nucleus({next.id, next.z}, &inside)) return false;
                if (inside) draws[i] = {next.id, next.z, next.key, proved}, drawn = true;
            }
            if (!drawn && static_cast<int64_t>(first.size()) < m) return false;
        }
    }
    return true;
}

}  // namespace headlong
