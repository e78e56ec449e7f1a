// A gate over executors: each query is read by the one expert that the gate picks, in one native call.
#pragma once

#include "executor/executor.h"

namespace headlong {

// x = [hidden, 1] or hidden; G = softmax(gate x); the expert argmax G, its x scaled by G there.
struct Route {
    int64_t expert = 0;
    double value = 1;   // the gate's probability
    double wrong = 0;   // its relative error
    bool sure = true;   // no rounding can have changed the choice
};

// What an expert's answers may be off by, beside their own error: the rounding of the gate and of g x.
struct Routed {
    std::vector<Route> routes;
    std::vector<double> x;      // [query][width], scaled
    std::vector<double> error;  // [query]
};

class Experts {
  public:
    std::vector<const Executor*> experts;
    const float* gate = nullptr;      // [experts][width]
    const int64_t* ids = nullptr;     // [rows], ascending inside an expert
    const int64_t* starts = nullptr;  // [experts + 1]
    int64_t width = 0, dim = 0;
    double most_gate = 0;  // the longest gate row
    bool constant = false, scaled = true;

    Routed route(const double* hidden, int64_t count) const;

    // The answers of every query's expert, ids of the whole layer. k = 0: the normaliser alone.
    std::vector<Answer> ask(const Routed& routed, const Question& question) const;

    // out [count][m]: the logits of `classes` [count][m], -inf where the expert lacks one.
    void logits(const Routed& routed, const int64_t* classes, int64_t m, double* out) const;

    // out [count][vocab], filled with -inf before.
    void everything(const Routed& routed, int64_t vocab, int threads, double* out) const;

    // draws [count][n]: argmax z / T + gumbel over the expert's classes.
    std::vector<Draw> sample(const Routed& routed, const SampleRule& rule, int threads) const;

    int64_t size(int64_t expert) const { return starts[expert + 1] - starts[expert]; }

  private:
    Route choose(const double* x, double* scores) const;
    // One query's, whose row number is rule.row0.
    void draw_from_all(const Route& route, const double* x, const SampleRule& rule, Draw* draws) const;
    void all_logits(int64_t expert, const double* x, double* out) const;
};

}  // namespace headlong
