// The search over blocks for Python. Arrays are borrowed: what is bound keeps their owners.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "bind/arguments.h"
#include "bind/without_gil.h"
#include "blocks/class_order.h"
#include "blocks/rotated_query.h"
#include "blocks/search.h"
#include "executor/executor.h"
#include "runtime/pool.h"

namespace headlong {
namespace {

RecordShape shape_of(nb::handle pair) {
    const auto tuple = nb::cast<nb::tuple>(pair);
    RecordShape shape{nb::cast<int64_t>(tuple[0]), nb::cast<int64_t>(tuple[1])};
    check(shape.count >= 1 && shape.count <= 4096 && shape.tails >= 1 && shape.tails <= kMostTails, "a record has codes and lengths");
    return shape;
}

class BoundBlocks {
  public:
    // weight [vocab][dim]; turns: leading [width][dim] in strips, and back, rest in tiles, scale, lost, or None each; boxed; edges; order; levels: (records, count,
    // tails) coarse to fine; closer: (records, count, tails, from) or None; shared: two times four factors.
    BoundBlocks(AnyArray weight, const std::string& name, std::optional<Floats> bias, Doubles mean, std::optional<Doubles> centre,
                nb::tuple turns, int64_t boxed, nb::sequence edges, ArrayOf<int32_t> order,
                nb::sequence levels, std::optional<nb::tuple> closer, nb::tuple shared, double most,
                const std::string& isa, double trial, double most_norm) {
        const Level& level = level_of(isa);
        b_.kernels = level.kernels, b_.looks = level.looks;
        const StoredRows rows = rows_of(weight, name);
        b_.weight = rows.data, b_.kind = rows.kind, b_.vocab = rows.vocab, b_.dim = rows.dim;
        check(!bias || static_cast<int64_t>(bias->size()) == b_.vocab, "bias [vocab]");
        check(static_cast<int64_t>(mean.size()) == b_.dim && (!centre || centre->size() == mean.size()), "mean, centre [dim]");
        b_.bias = bias ? bias->data() : nullptr;
        b_.mean = mean.data();
        b_.centre = centre ? centre->data() : nullptr;
        b_.boxed = boxed;
        b_.most = most;
        b_.most_norm = most_norm;
        for (Trial& one : b_.trials) one.most = trial;
        take_turns(turns);
        for (nb::handle edge : edges) b_.edges.push_back(nb::cast<int64_t>(edge));
        check(!b_.edges.empty() && b_.edges.front() == boxed && b_.edges.back() == b_.dim, "edges go from boxed to the last coordinate");
        for (size_t s = 0; s + 1 < b_.edges.size(); ++s) check(b_.edges[s] < b_.edges[s + 1], "edges ascend");
        size_t behind = 0;
        for (size_t s = 0; s + 1 < b_.edges.size(); ++s) {
            check(b_.edges[s] >= b_.width || b_.edges[s + 1] <= b_.width, "a segment lies on one side of the last leading coordinate");
            behind += b_.edges[s] >= b_.width;
        }
        check(b_.rest_lost.size() == 3 * behind, "three losses for every segment behind the leading coordinates");
        for (nb::handle level : levels) take_level(level);
        check(!b_.levels.empty(), "there is a level");
        check(static_cast<int64_t>(order.size()) == b_.levels.back().groups * kNeighbours, "order: sixteen for every block");
        for (size_t i = 0; i < order.size(); ++i) check(order.data()[i] >= -1 && order.data()[i] < b_.vocab, "order holds ids");
        b_.order = order.data();
        check_levels();
        take_gain();
        if (closer) take_closer(*closer);
        take_shared(shared[0], b_.shared);
        take_shared(shared[1], b_.closer_shared);
        keep_ = nb::make_tuple(weight, bias, mean, centre, turns, order, levels, closer);
    }

    // FoundByBlocks: ids, logits [count][k] (-1 and -inf where there are fewer), rows, bytes, opened, done [count].
    nb::object topk(Doubles hidden, int64_t k, std::optional<Bytes> mask, int threads) const {
        const int64_t count = batch_of(hidden, b_.dim);
        check(k >= 1 && k <= b_.vocab, "1 <= k <= vocab");
        check_mask(mask, count, b_.vocab);
        const uint8_t* marks = mask ? mask->data() : nullptr;
        const std::vector<SearchResult> found =
            unlocked([&] { return search(b_, hidden.data(), count, k, marks, mask && mask->shape(0) > 1, thread_count(threads)); });
        const auto [ids, logits] = best_columns(found, k);
        return named("FoundByBlocks", ids, logits, column(found, &SearchResult::rows), column(found, &SearchResult::bytes),
                     column(found, &SearchResult::opened), column(found, &SearchResult::done));
    }

    nb::capsule capsule() const { return nb::capsule(&b_, kBlocksCapsule); }

    // Answers call the rows by these names [vocab].
    void name(Ids names) {
        check(static_cast<int64_t>(names.size()) == b_.vocab, "names [vocab]");
        b_.names = names.data();
        names_ = nb::cast(names);
    }

    // Places [16 * groups] whose classes may be answered, sixteen bits to a block; no others are.
    void keep_there(ArrayOf<uint16_t> there) {
        check(static_cast<int64_t>(there.size()) == b_.levels.back().groups, "sixteen bits for every block");
        b_.there = there.data();
        there_ = nb::cast(there);
    }

    // Searches more classes after its own, in a tree that bounds the same coordinates. Calls take no mask then.
    void put_next(nb::object other) {
        const Blocks& more = nb::cast<const BoundBlocks&>(other).b_;
        check(more.dim == b_.dim && more.width == b_.width && more.boxed == b_.boxed && more.edges == b_.edges &&
                  more.closer_from == b_.closer_from && more.closer_shape.count == b_.closer_shape.count && more.next == nullptr,
              "trees side by side bound the same coordinates");
        b_.next = &more, b_.most_norm = std::max(b_.most_norm, more.most_norm);
        next_ = std::move(other);
    }

  private:
    void take_turns(const nb::tuple& turns) {
        const auto leading = nb::cast<AnyArray>(turns[0]);
        check(leading.size() > 0 && static_cast<int64_t>(leading.size()) % b_.dim == 0, "leading coordinates: strips of [width, dim]");
        check(leading.itemsize() == 4 || leading.itemsize() == 2, "rotations are float32 or float16");
        b_.leading = leading.data();
        b_.width = static_cast<int64_t>(leading.size()) / b_.dim;
        b_.rotation_kind = leading.itemsize() == 4 ? Kind::f32 : Kind::f16;
        check(b_.boxed >= 1 && b_.boxed <= b_.width, "1 <= boxed <= width");
        if (turns.size() > 4 && !turns[4].is_none()) {
            const auto lost = nb::cast<Doubles>(turns[4]);
            b_.rest_lost.assign(lost.data(), lost.data() + lost.size());
        }
        if (turns[1].is_none()) {
            check(b_.width == b_.dim, "fewer leading coordinates have a rest");
            return;
        }
        const auto back = nb::cast<AnyArray>(turns[1]);
        check(is_matrix(back, b_.width, b_.dim) && back.itemsize() == leading.itemsize(), "back [width, dim], of the type of the leading coordinates");
        b_.back = back.data();
        const auto rest = nb::cast<ArrayOf<int8_t>>(turns[2]);
        const auto scale = nb::cast<Floats>(turns[3]);
        b_.rest_width = (b_.dim - b_.width + kNeighbours - 1) / kNeighbours * kNeighbours;
        check(static_cast<int64_t>(rest.size()) == b_.dim * b_.rest_width && static_cast<int64_t>(scale.size()) == b_.rest_width,
              "rest: tiles of [dim, a multiple of 16], and their scales");
        b_.rest = rest.data();
        b_.rest_scale = scale.data();
    }

    void take_level(nb::handle entry) {
        const auto level = nb::cast<nb::tuple>(entry);
        const auto records = nb::cast<Bytes>(level[0]);
        BlockLevel one{records.data(), 0, shape_of(level[1])};
        check(records.ndim() == 2 && static_cast<int64_t>(records.shape(1)) == one.shape.group_bytes(), "records [groups, bytes]");
        one.groups = static_cast<int64_t>(records.shape(0));
        b_.levels.push_back(one);
    }

    // Every node has its children, the last level's nodes are places, and every record has the lengths of a query.
    void check_levels() const {
        const auto tails = static_cast<int64_t>(b_.edges.size());
        for (size_t l = 0; l < b_.levels.size(); ++l) {
            const BlockLevel& level = b_.levels[l];
            const bool last = l + 1 == b_.levels.size();
            check(level.groups >= 1 && level.shape.tails == tails, "a record has a length for every segment, and one more");
            check(level.shape.count == (last ? b_.boxed : 2 * b_.boxed), "a box has two codes for every coordinate of a class");
            if (last) continue;
            const int64_t below = b_.levels[l + 1].groups;
            check(level.groups == (below + kNeighbours - 1) / kNeighbours, "a record for every sixteen below");
            for (int64_t n = below; n < level.groups * kNeighbours; ++n) {
                float base;
                const uint8_t* record = level.records + n / kNeighbours * level.shape.group_bytes();
                const int64_t at = (level.shape.count + level.shape.tails) * kNeighbours + 128 + n % kNeighbours * 4;
                std::memcpy(&base, record + at, 4);
                check(base == -std::numeric_limits<float>::infinity(), "what pads a record lies below every bound");
            }
        }
    }

    // What bounds can be at most, by the coarsest nodes: none below has more.
    void take_gain() {
        const BlockLevel& root = b_.levels.front();
        const int64_t first = (root.shape.count + root.shape.tails) * kNeighbours;
        for (int64_t n = 0; n < root.groups * kNeighbours; ++n) {
            float numbers[3];  // scale, unit, base
            const uint8_t* at = root.records + n / kNeighbours * root.shape.group_bytes() + first + n % kNeighbours * 4;
            for (int64_t i = 0; i < 3; ++i) std::memcpy(&numbers[i], at + i * 64, 4);
            if (numbers[2] == -std::numeric_limits<float>::infinity()) continue;
            const double coded = 127.0 * static_cast<double>(b_.boxed) * numbers[0];
            b_.gain = std::max(b_.gain, coded + 255.0 * static_cast<double>(root.shape.tails) * numbers[1]);
            b_.largest = std::max<double>(b_.largest, std::fabs(numbers[2]));
        }
    }

    void take_closer(const nb::tuple& closer) {
        const auto records = nb::cast<Bytes>(closer[0]);
        b_.closer_shape = shape_of(closer[1]);
        b_.closer_from = nb::cast<int64_t>(closer[2]);
        check(records.ndim() == 2 && static_cast<int64_t>(records.shape(1)) == b_.closer_shape.class_bytes() &&
                  records.shape(0) == static_cast<size_t>(b_.levels.back().groups * kNeighbours), "closer [places, bytes]");
        const auto segments = static_cast<int64_t>(b_.edges.size()) - 1;
        b_.closer = records.data();
        check(b_.closer_shape.count == b_.width - b_.boxed, "a closer look has the coordinates behind those of a block");
        check(b_.closer_from >= 0 && b_.closer_from <= segments && b_.closer_shape.tails == segments - b_.closer_from + 1, "lengths of a closer look");
    }

    static void take_shared(nb::handle list, double* to) {
        const auto numbers = nb::cast<nb::tuple>(list);
        check(numbers.size() == 4, "four factors");
        for (int i = 0; i < 4; ++i) to[i] = nb::cast<double>(numbers[i]);
    }

    Blocks b_;
    nb::object keep_, names_, there_, next_;
};

nb::object neighbours_of(Floats features, int threads) {
    check(features.ndim() == 2 && features.shape(1) >= 1, "features [classes, numbers]");
    std::vector<int32_t> order(features.shape(0));
    unlocked([&] { neighbours(features.data(), features.shape(0), features.shape(1), thread_count(threads), order.data()); });
    const size_t count = order.size();
    return owned(std::move(order), {count});
}

}  // namespace

void bind_blocks(nb::module_& m) {
    nb::class_<BoundBlocks>(m, "Blocks")
        .def(nb::init<AnyArray, const std::string&, std::optional<Floats>, Doubles, std::optional<Doubles>, nb::tuple, int64_t,
                      nb::sequence, ArrayOf<int32_t>, nb::sequence, std::optional<nb::tuple>,
                      nb::tuple, double, const std::string&, double, double>(),
             nb::arg("weight"), nb::arg("kind"), nb::arg("bias").none(), nb::arg("mean"), nb::arg("centre").none(), nb::arg("turns"),
             nb::arg("boxed"), nb::arg("edges"), nb::arg("order"), nb::arg("levels"), nb::arg("closer").none(), nb::arg("shared"),
             nb::arg("most"), nb::arg("isa"), nb::arg("trial") = kInf,
             nb::arg("most_norm") = 0.0)
        .def("topk", &BoundBlocks::topk, nb::arg("hidden"), nb::arg("k"), nb::arg("mask").none(), nb::arg("threads"))
        .def_prop_ro("capsule", &BoundBlocks::capsule)
        .def("name", &BoundBlocks::name, nb::arg("names"))
        .def("keep_there", &BoundBlocks::keep_there, nb::arg("there"))
        .def("put_next", &BoundBlocks::put_next, nb::arg("other"));
    m.def("neighbours", &neighbours_of, nb::arg("features"), nb::arg("threads"));
}

}  // namespace headlong
