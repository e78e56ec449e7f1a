// How many classes are in the nucleus of top_p where all masses are known: sorted ones, or ones in any order.
#include <algorithm>
#include <cmath>

#include "executor/verbs.h"
#include "normaliser/draw_points.h"

namespace headlong {
namespace {

// The rule: a class stays while those better than it have less than `target`, top_p of all mass; the best stays whatever comes.
bool in_nucleus(bool best, double before, double target) { return best || before < target; }

// How many of `count` classes of one mass stay: the rule solved for the place of the first that does not.
int64_t equals_in_nucleus(bool best, double before, double mass, int64_t count, double target) {
    if (in_nucleus(false, before + mass * static_cast<double>(count), target)) return count;
    const double wanted = mass > 0 ? std::ceil((target - before) / mass) : 1;
    return std::clamp<int64_t>(static_cast<int64_t>(wanted), best ? 1 : 0, count);
}

}  // namespace

size_t nucleus_size(const std::vector<double>& mass, double target) {
    double before = 0;
    size_t size = 0;
    while (size < mass.size() && in_nucleus(size == 0, before, target)) before += mass[size++];
    return size;
}

// The place is selected, larger logits to the front; of equal ones, which no comparison tells apart, the smaller ids come first.
size_t select_nucleus(std::vector<Massive>& all, double target) {
    size_t first = 0, last = all.size();
    double before = 0;
    for (uint64_t turn = 0; first < last; ++turn) {
        const double pivot = all[first + mix(turn + last) % (last - first)].z;
        const auto begin = all.begin() + static_cast<int64_t>(first), end = all.begin() + static_cast<int64_t>(last);
        const auto equal = std::partition(begin, end, [&](const Massive& m) { return m.z > pivot; });
        const auto less = std::partition(equal, end, [&](const Massive& m) { return m.z == pivot; });
        double above = before;
        for (auto m = begin; m != equal; ++m) above += m->mass;
        if (begin != equal && !in_nucleus(false, above, target)) {
            last = static_cast<size_t>(equal - all.begin());
            continue;
        }
        const int64_t count = less - equal, some = equals_in_nucleus(!(above > 0), above, equal->mass, count, target);
        if (some < count || !in_nucleus(false, above + equal->mass * static_cast<double>(count), target)) {
            std::nth_element(equal, equal + some, less, [](const Massive& a, const Massive& b) { return a.id < b.id; });
            return static_cast<size_t>(equal - all.begin() + some);
        }
        before = above + equal->mass * static_cast<double>(count);
        first = static_cast<size_t>(less - all.begin());
    }
    return last;
}

}  // namespace headlong
