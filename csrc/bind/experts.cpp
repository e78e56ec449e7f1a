// The Python face of a gate over executors; see headlong.engines.structured.experts for what it answers.
#include "bind/arguments.h"
#include "bind/without_gil.h"
#include "runtime/pool.h"
#include "structured/experts.h"

namespace headlong {
namespace {

class BoundExperts {
  public:
    BoundExperts(Floats gate, Ids ids, Ids starts, nb::list executors, bool constant, bool scaled)
        : gate_(gate), ids_(ids), starts_(starts), executors_(executors) {
        Experts& e = experts_;
        check(gate.ndim() == 2 && gate.shape(0) == nb::len(executors) && nb::len(executors) > 0,
              "gate must be [experts, width], one executor each");
        const int64_t count = static_cast<int64_t>(gate.shape(0));
        e.width = static_cast<int64_t>(gate.shape(1));
        e.dim = e.width - (constant ? 1 : 0);
        e.constant = constant;
        e.scaled = scaled;
        e.gate = gate.data();
        e.ids = ids.data();
        e.starts = starts.data();
        check(e.dim > 0 && starts.ndim() == 1 && static_cast<int64_t>(starts.size()) == count + 1 && starts.data()[0] == 0 &&
                  starts.data()[count] == static_cast<int64_t>(ids.size()),
              "starts must be [experts + 1], from 0 to the number of ids");
        for (int64_t k = 0; k < count; ++k) {
            const nb::capsule capsule = nb::cast<nb::capsule>(executors[k].attr("capsule"));
            const Executor* executor = static_cast<const Executor*>(capsule.data(kExecutorCapsule));
            check(starts.data()[k] < starts.data()[k + 1] && executor->vocab == e.size(k) && executor->dim == e.width,
                  "an executor does not fit its expert");
            double square = 0;
            for (int64_t j = 0; j < e.width; ++j) square += static_cast<double>(e.gate[k * e.width + j]) * e.gate[k * e.width + j];
            e.most_gate = std::max(e.most_gate, std::sqrt(square) * (1 + 0x1p-20));
            e.experts.push_back(executor);
        }
    }

    // FoundOfExpert: logits, ids [batch, k], lse, logit_error, lse_error, proved, rows, bytes, dense, expert [batch]
    nb::object best(Doubles hidden, int64_t k, double eps, int threads) const {
        const int64_t batch = batch_of(hidden, experts_.dim);
        check(k >= 0 && eps > 0, "k >= 0, eps > 0");
        Question question;
        question.k = k;
        question.eps = eps;
        question.threads = thread_count(threads);
        Routed routed;
        std::vector<Answer> answers;
        unlocked([&] {
            routed = experts_.route(hidden.data(), batch);
            answers = experts_.ask(routed, question);
        });
        std::vector<double> lse_error;
        for (int64_t b = 0; b < batch; ++b) {
            lse_error.push_back(answers[b].error + routed.error[b]);
            answers[b].bytes += static_cast<double>(experts_.experts.size() * experts_.width * 4);
        }
        const auto [ids, logits] = best_columns(answers, k);
        const size_t B = batch;
        return named("FoundOfExpert", logits, ids, column(answers, &Answer::lse), owned(std::move(routed.error), {B}), owned(std::move(lse_error), {B}),
                     column(answers, &Answer::proved), column(answers, &Answer::rows), column(answers, &Answer::bytes),
                     column(answers, &Answer::dense), column(routed.routes, &Route::expert));
    }

    nb::object logits(Doubles hidden, Ids classes) const {
        const int64_t batch = batch_of(hidden, experts_.dim);
        check(classes.ndim() == 2 && static_cast<int64_t>(classes.shape(0)) == batch, "ids must be [batch, m]");
        std::vector<double> out(batch * classes.shape(1));
        unlocked([&] { experts_.logits(experts_.route(hidden.data(), batch), classes.data(), static_cast<int64_t>(classes.shape(1)), out.data()); });
        return owned(std::move(out), {static_cast<size_t>(batch), classes.shape(1)});
    }

    nb::object everything(Doubles hidden, int64_t vocab, int threads) const {
        const int64_t batch = batch_of(hidden, experts_.dim);
        for (size_t i = 0; i < ids_.size(); ++i) check(ids_.data()[i] >= 0 && ids_.data()[i] < vocab, "an id is out of range");
        std::vector<double> out(batch * vocab, -kInf);
        unlocked([&] { experts_.everything(experts_.route(hidden.data(), batch), vocab, thread_count(threads), out.data()); });
        return owned(std::move(out), {static_cast<size_t>(batch), static_cast<size_t>(vocab)});
    }

    // DrawsOfExpert: ids, logits, score, proved [batch, n], expert [batch]
    nb::object sample(Doubles hidden, int n, double temperature, uint64_t seed, uint64_t row0, int threads) const {
        const int64_t batch = batch_of(hidden, experts_.dim);
        check(n >= 1 && temperature > 0, "n >= 1, temperature > 0");
        SampleRule rule{n, temperature, 0, 1, 0, seed, row0};
        Routed routed;
        std::vector<Draw> draws;
        unlocked([&] {
            routed = experts_.route(hidden.data(), batch);
            draws = experts_.sample(routed, rule, thread_count(threads));
        });
        const size_t B = batch, N = n;
        return named("DrawsOfExpert", column(draws, &Draw::id, {B, N}), column(draws, &Draw::z, {B, N}), column(draws, &Draw::score, {B, N}),
                     column(draws, &Draw::proved, {B, N}), column(routed.routes, &Route::expert));
    }

  private:
    Floats gate_;
    Ids ids_, starts_;
    nb::list executors_;
    Experts experts_;
};

}  // namespace

void bind_experts(nb::module_& m) {
    nb::class_<BoundExperts>(m, "Experts")
        .def(nb::init<Floats, Ids, Ids, nb::list, bool, bool>(), nb::arg("gate"), nb::arg("ids"), nb::arg("starts"),
             nb::arg("executors"), nb::arg("constant"), nb::arg("scaled"))
        .def("best", &BoundExperts::best, nb::arg("hidden"), nb::arg("k"), nb::arg("eps"), nb::arg("threads") = 0)
        .def("logits", &BoundExperts::logits, nb::arg("hidden"), nb::arg("ids"))
        .def("everything", &BoundExperts::everything, nb::arg("hidden"), nb::arg("vocab"), nb::arg("threads") = 0)
        .def("sample", &BoundExperts::sample, nb::arg("hidden"), nb::arg("n"), nb::arg("temperature"), nb::arg("seed"),
             nb::arg("row0"), nb::arg("threads") = 0);
}

}  // namespace headlong
