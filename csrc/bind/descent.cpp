// The Python face of the descent: arrays that Python has checked already, looked over once more, and kept alive.
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>

#include "bind/arguments.h"
#include "bind/without_gil.h"
#include "runtime/pool.h"
#include "runtime/shared_work.h"
#include "structured/descent.h"

namespace headlong {
namespace {

class BoundDescent {
  public:
    BoundDescent(int64_t dim, nb::sequence parts, Ids part, Ids first, Ids starts, Ids children, bool two_way, Ids owner,
                 Ids above, Ids leaf, const std::string& isa) {
        Steps& s = steps_;
        const Level& level = level_of(isa);
        isa_ = level.name, s.kernels = level.kernels;
        s.dim = dim;
        s.two_way = two_way;
        for (nb::handle entry : parts) add_part(nb::cast<nb::sequence>(entry));
        s.nodes = part.size();
        s.branches = children.size();
        s.vocab = leaf.size();
        check(s.nodes > 0 && static_cast<int64_t>(first.size()) == s.nodes && static_cast<int64_t>(above.size()) == s.nodes &&
                  static_cast<int64_t>(starts.size()) == s.nodes + 1 && static_cast<int64_t>(owner.size()) == s.branches,
              "the arrays of nodes and branches do not fit each other");
        s.part = kept(part), s.first = kept(first), s.starts = kept(starts), s.children = kept(children);
        s.owner = kept(owner), s.above = kept(above), s.leaf = kept(leaf);
        check_nodes();
    }

    nb::tuple best(Doubles hidden, int64_t k, int threads) const {
        check(k >= 1 && k <= steps_.vocab, "k must be in 1..vocab");
        const std::vector<Read> read =
            over_queries(hidden, threads, [&](int64_t, const double* x, int own, Read& to) { to.best = descend(steps_, x, k, own, &to); });
        const auto [ids, log_probs] = best_columns(read, k);
        return nb::make_tuple(log_probs, ids, column(read, &Read::rows), column(read, &Read::bytes));
    }

    nb::tuple log_probs(Doubles hidden, Ids ids, int threads) const {
        check(hidden.ndim() == 2 && ids.ndim() == 2 && ids.shape(0) == hidden.shape(0), "ids must be [batch, m]");
        for (size_t i = 0; i < ids.size(); ++i) check(ids.data()[i] >= 0 && ids.data()[i] < steps_.vocab, "an id is out of range");
        const int64_t m = ids.shape(1);
        std::vector<double> out(ids.size());
        const std::vector<Read> read = over_queries(hidden, threads, [&](int64_t b, const double* x, int own, Read& to) {
            follow(steps_, x, ids.data() + b * m, m, own, out.data() + b * m, &to);
        });
        return nb::make_tuple(owned(std::move(out), {ids.shape(0), ids.shape(1)}), column(read, &Read::rows), column(read, &Read::bytes));
    }

    const char* isa() const { return isa_; }

  private:
    // (weight, kind, bias or None, projection or None, its kind)
    void add_part(nb::sequence entry) {
        StepPart p;
        const auto weight = nb::cast<AnyArray>(entry[0]);
        p.kind = kind_of(nb::cast<std::string>(entry[1]));
        p.weight = weight_of(weight, p.kind);
        p.rows = weight.shape(0), p.width = weight.shape(1);
        arrays_.push_back(nb::cast(weight));
        if (!entry[2].is_none()) {
            const auto bias = nb::cast<Floats>(entry[2]);
            check(static_cast<int64_t>(bias.size()) == p.rows, "a bias must have one number for each row");
            p.bias = bias.data();
            arrays_.push_back(nb::cast(bias));
        }
        check(!entry[3].is_none() || p.width == steps_.dim, "a part without a projection is as wide as the hidden vector");
        if (!entry[3].is_none()) {
            const auto projection = nb::cast<AnyArray>(entry[3]);
            p.projection_kind = kind_of(nb::cast<std::string>(entry[4]));
            p.projection = weight_of(projection, p.projection_kind);
            check(is_matrix(projection, p.width, steps_.dim), "a projection must be [width, dim]");
            arrays_.push_back(nb::cast(projection));
        }
        steps_.parts.push_back(p);
    }

    const int64_t* kept(const Ids& array) {
        arrays_.push_back(nb::cast(array));
        return array.data();
    }

    void check_nodes() const {
        const Steps& s = steps_;
        check(s.starts[0] == 0 && s.starts[s.nodes] == s.branches, "starts must run from 0 to the number of branches");
        for (int64_t n = 0; n < s.nodes; ++n) {
            check(s.part[n] >= 0 && s.part[n] < static_cast<int64_t>(s.parts.size()), "a node names a part that is not there");
            check(s.starts[n] < s.starts[n + 1] && (!s.two_way || s.fan(n) == 2), "a node has the wrong number of branches");
            check(s.first[n] >= 0 && s.first[n] + s.rows(n) <= s.parts[s.part[n]].rows, "a node's rows are not there");
            check(s.above[n] >= -1 && s.above[n] < s.branches, "a branch is out of range");
        }
        for (int64_t i = 0; i < s.branches; ++i)
            check(s.children[i] < s.nodes && ~s.children[i] < s.vocab && s.owner[i] >= 0 && s.owner[i] < s.nodes &&
                      s.starts[s.owner[i]] <= i && i < s.starts[s.owner[i] + 1],
                  "a branch leads nowhere");
        for (int64_t c = 0; c < s.vocab; ++c) check(s.leaf[c] >= 0 && s.leaf[c] < s.branches, "a class has no branch");
    }

    // work(query, hidden vector, threads, what it reads). One query shares its nodes among the threads; of several, each thread takes whole
    // ones.
    template <typename Work>
    std::vector<Read> over_queries(const Doubles& hidden, int threads, const Work& work) const {
        const int64_t batch = batch_of(hidden, steps_.dim);
        std::vector<Read> read(batch);
        unlocked([&] {
            const int count = thread_count(threads), inside = batch == 1 ? count : 1;
            each_resolved(batch, count, batch == 1, [&](int64_t b) { work(b, hidden.data() + b * steps_.dim, inside, read[b]); });
        });
        return read;
    }

    const char* isa_ = nullptr;
    Steps steps_;
    std::vector<nb::object> arrays_;
};

}  // namespace

void bind_descent(nb::module_& m) {
    nb::class_<BoundDescent>(m, "Descent")
        .def(nb::init<int64_t, nb::sequence, Ids, Ids, Ids, Ids, bool, Ids, Ids, Ids, const std::string&>(), nb::arg("dim"),
             nb::arg("parts"), nb::arg("part"), nb::arg("first"), nb::arg("starts"), nb::arg("children"), nb::arg("two_way"),
             nb::arg("owner"), nb::arg("above"), nb::arg("leaf"), nb::arg("isa") = "")
        .def("best", &BoundDescent::best, nb::arg("hidden"), nb::arg("k"), nb::arg("threads") = 0)
        .def("log_probs", &BoundDescent::log_probs, nb::arg("hidden"), nb::arg("ids"), nb::arg("threads") = 0)
        .def_prop_ro("isa", &BoundDescent::isa);
}

}  // namespace headlong
