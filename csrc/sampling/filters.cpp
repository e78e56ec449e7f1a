// The filters of a sampler: top_k, top_p, min_p, in this order.
//
// They never sort V classes: the best of them, best first, and the normaliser decide. A class is in the nucleus of top_p while those better than
// it have less than top_p of all mass, so both ends of the normaliser give the least and the most classes that are; which of them it is matters
// only where a draw falls between. min_p is a floor below the best logit. The same filters where every logit is known: sampling/dense.cpp.
#include <algorithm>
#include <cmath>

#include "executor/verbs.h"

namespace headlong {

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
    const double beta = rule.beta(), most = e.linked(sorted[0].z) * beta;
    std::vector<double> mass;
    double sum = 0;
    for (const Scored& s : sorted) mass.push_back(std::exp(e.linked(s.z) * beta - most)), sum += mass.back();
    size_t keep = rule.top_p < 1 ? nucleus_size(mass, rule.top_p * (total > 0 ? total : sum)) : sorted.size();
    const double floor = rule.min_p > 0 ? std::log(rule.min_p) : -kInf;
    while (keep > 1 && e.linked(sorted[keep - 1].z) * beta - most < floor) --keep;
    sorted.resize(keep);
    return sorted;
}

Draw pick(const Executor& e, const Scored* kept, size_t count, const SampleRule& rule, uint32_t draw, size_t* place) {
    Draw out;
    for (size_t i = 0; i < count; ++i) {
        const double key = e.linked(kept[i].z) / rule.temperature + gumbel(rule.seed, rule.row0, draw, rule.name(kept[i].id));
        if (out.id >= 0 && !(key > out.score) && !(key == out.score && kept[i].id < out.id)) continue;
        out = {kept[i].id, kept[i].z, key, true};
        if (place != nullptr) *place = i;
    }
    return out;
}

namespace {

// The place of a class among the best; their number where it is not one of them.
size_t place_of(const std::vector<Scored>& best, int64_t id) {
    return static_cast<size_t>(std::find_if(best.begin(), best.end(), [&](const Scored& one) { return one.id == id; }) - best.begin());
}

}  // namespace

bool draws_beyond(const Answer& answer) {
    return std::any_of(answer.draws.begin(), answer.draws.end(), [&](const Draw& one) { return place_of(answer.best, one.id) == answer.best.size(); });
}

Verdict draw_among(const Executor& e, Answer& answer, bool whole, const SampleRule& rule, double eps, Draw* draws) {
    const std::vector<Scored>& best = answer.best;
    const double beta = rule.beta(), top = best.empty() ? -kInf : e.linked(best[0].z) * beta;
    if (!std::isfinite(top) || best.back().z == -kInf) return Verdict::all;
    const size_t there = rule.top_k > 0 ? std::min<size_t>(rule.top_k, best.size()) : best.size();
    whole |= rule.top_k > 0 && static_cast<int64_t>(best.size()) >= rule.top_k;  // no other may pass
    if (!whole && rule.top_k > 0) return Verdict::more;
    std::vector<double> mass(there);
    double sum = 0;
    for (size_t i = 0; i < there; ++i) sum += mass[i] = std::exp(e.linked(best[i].z) * beta - top);
    if (answer.inside && !std::isfinite(eps)) {
        std::copy(answer.draws.begin(), answer.draws.end(), draws);
        return Verdict::drawn;
    }
    if (!whole && rule.goes_by_mass() && !std::isfinite(answer.error)) {  // a draw of all classes is in the nucleus if those better than it have little
        double before = 0;
        std::vector<double> ahead(there);
        for (size_t i = 0; i < there; ++i) ahead[i] = before, before += mass[i];
        for (size_t d = 0; d < answer.draws.size(); ++d) {
            const size_t at = place_of(best, answer.draws[d].id);
            if (at >= there || !(ahead[at] < rule.top_p * sum * kSurely)) return Verdict::weigh;
            draws[d] = answer.draws[d];
        }
        return answer.draws.empty() ? Verdict::weigh : Verdict::drawn;
    }
    size_t least = there, most = there;  // classes that pass
    double next = 1;                     // what the last of the nucleus has at the most, as a share of all
    if (rule.top_p < 1 && whole) {
        least = most = nucleus_size(mass, rule.top_p * sum);
    } else if (rule.top_p < 1) {
        const double low = std::max(std::exp(answer.lse - answer.error - top), sum * kSurely), high = std::exp(answer.lse + answer.error - top);
        if (!(low > 0) || !std::isfinite(high)) return Verdict::all;
        least = nucleus_size(mass, rule.top_p * low), most = nucleus_size(mass, rule.top_p * high);
        least = std::max(least, std::min(there, answer.least)), most = std::min(most, std::max(least, answer.most));
        next = mass[least - 1] / low;
    }
    const bool by_mass = least < most && !(rule.min_p > 0);
    if (rule.min_p > 0) {
        const double floor = std::log(rule.min_p);
        size_t above = 1;
        while (above < most && e.linked(best[above].z) * beta - top >= floor) ++above;
        least = std::min(least, above), most = std::min(most, above);
    }
    if (!whole && most == there) {  // of a nucleus that goes on the first `least` are in it, and with them a draw of all classes that is one of these
        if (!rule.goes_by_mass() || answer.draws.empty()) return Verdict::more;
        for (int i = 0; i < rule.n; ++i) {
            const size_t place = place_of(best, answer.draws[i].id);
            if (place >= least && !answer.inside) return place < there ? Verdict::all : Verdict::more;
            draws[i] = answer.draws[i];
        }
        const double half = 0.5 * std::log1p(next / rule.top_p);  // it has top_p and less than its last class more
        answer.kept = std::min(0.0, std::log(rule.top_p) + half);
        answer.error = std::max(answer.error, half + 0x1p-50);
        return answer.error <= eps ? Verdict::drawn : Verdict::more;
    }
    for (int i = 0; i < rule.n; ++i) {
        size_t place = 0;
        draws[i] = pick(e, best.data(), most, rule, static_cast<uint32_t>(i), &place);
        draws[i].proved = answer.proved;
        if (place >= least) return Verdict::all;
    }
    if (!std::isfinite(eps)) return Verdict::drawn;
    double low = 0, high = 0;  // of what is kept, both ends
    for (size_t i = 0; i < most; ++i) high += mass[i], low += i < least ? mass[i] : 0;
    low = std::log(low) + top - answer.lse, high = std::log(high) + top - answer.lse;
    if (least < most) {  // a nucleus has top_p and less than its last class more
        low -= answer.error, high += answer.error;
        if (by_mass) low = std::max(low, std::log(rule.top_p)), high = std::min(high, std::log(rule.top_p + next));
        answer.error = std::max(answer.error, 0.5 * (high - low) + 0x1p-50);
        if (!(answer.error <= eps)) return Verdict::all;
    }
    answer.kept = std::min(0.0, 0.5 * (low + high));
    return Verdict::drawn;
}

}  // namespace headlong
