// Runs a plan over a layer: one native call answers a batch of queries.
//
// The arrays are borrowed (bind/module.cpp keeps their owners alive) and never changed; an executor may serve many threads.
// executor/query.cpp looks at all classes and gathers what the resolvers need; executor/topk.cpp and executor/sample.cpp resolve one query each.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/scratch.h"

namespace headlong {

constexpr int64_t kChunk = 512;    // classes between two looks at the threshold
constexpr int kBlockQueries = 64;  // queries that read level 0 together
constexpr double kInf = std::numeric_limits<double>::infinity();

// The query's half of a summand of the radius, and which row of the slack it multiplies; see plan.Term.
enum class TermKind : int { norm, quantised, rest, peaks, hidden, one };
struct Term {
    TermKind kind;
    int64_t start, stop;
    double factor;
    int row;
    double likely = 1;  // for the bet on the normaliser alone
};

// A run of coordinates: where its codes are (32-bit words of each class side by side, or bytes of a row) and where the
// query's halves for it (quads, or bytes).
struct Segment {
    int64_t start, stop;
    int bits;
    int64_t words, first_word, quads, first_quad;
    int32_t middle() const { return bits == 8 ? 128 : (1 << bits) - 1; }  // what a code is above its value
};

// One way to look at all classes: interleaved codes, or the rows of a float matrix.
struct Source {
    const uint8_t* codes = nullptr;
    std::vector<Segment> segments;
    int64_t words = 0, quads = 0;
    const float* scale = nullptr;

    const void* rows = nullptr;
    Kind kind = Kind::f32;
    int64_t width = 0;

    bool rotated = false;  // reads x = (hidden - mean) @ rotation rather than the hidden vector
    const float* base = nullptr;
    std::vector<const float*> slack;
    std::vector<Term> terms;
    double bytes = 0;  // of a full pass
};

// A finer look at single classes: codes row by row.
struct Deeper {
    const uint8_t* codes = nullptr;
    int64_t bytes = 0, halves = 0;  // of a row, of the query's halves
    std::vector<Segment> segments;
    const float* scale = nullptr;
    std::vector<const float*> slack;
    std::vector<Term> terms;
    bool adds = false;  // to the estimate of the level before, or replaces it
};

// One query as a deeper level wants it.
struct DeeperQuery {
    std::vector<int8_t> high, low;
    std::vector<int32_t> offset;  // [segment][plane]
    std::vector<float> step;      // [segment]
    Radius radius;
};

// The queries of one block as a source wants them.
struct Prepared {
    int n = 0, padded = 0;
    std::vector<int8_t> planes;   // [segment][query][quad][plane][4]
    std::vector<int32_t> offset;  // [segment][query][plane]: what coding bytes as u + 128 adds
    std::vector<float> step;      // [segment][query]
    std::vector<Strip> strips;    // [segment], of a single query where the kernels take all of them at once
    std::vector<float> x;         // [query][width], or [width][padded] for a large block
    std::vector<float> add;       // [query]: <centre, hidden>
    std::vector<Radius> radius, likely;  // [query]
    std::vector<DeeperQuery> deeper;  // [query][level]
};

// Sums of exp(link(z) * beta - shift) over some classes.
struct Masses {
    double shift = -kInf;
    Kernels::Sums sums{0, 0, 0, 0};

    void join(double other_shift, const Kernels::Sums& more);
};

// What one thread gathered for one query.
struct Part {
    std::vector<float> best;                  // heap: the k largest lower ends
    std::vector<int32_t> ids;                 // classes whose upper end reaches the threshold of their time
    std::vector<float> est, upper;
    int64_t seen = 0;
};

struct Scored {
    int64_t id;
    double z;
};

// Larger logits first, smaller ids first among equals.
inline bool better(const Scored& a, const Scored& b) { return a.z > b.z || (a.z == b.z && a.id < b.id); }

// A question, the same for all queries of a call.
struct Question {
    int64_t k = 0;
    double eps = kInf, beta = 1;
    double delta = 0;   // > 0: the normaliser may be estimated from sampled rows, wrong this often
    uint64_t seed = 0;  // of those rows
    const uint8_t* mask = nullptr;  // [1 or batch][vocab]: 1 where a class may be answered
    bool mask_per_row = false, keep = false;
    int threads = 1;
};

// Classes that are looked at without a break.
struct Span {
    int64_t first, count;
};

// A look at all classes by a block of queries.
struct Look {
    const Source* source;
    Prepared prepared;
    std::vector<int64_t> rows;      // which queries of the batch
    Scratch<double> hidden;         // [query][dim]
    std::vector<Part> parts;        // [query][thread]
    Scratch<float> est;             // kept estimates [query][padded vocab], or empty
    Scratch<float> rad;             // and the radii, where a single query was asked to keep both, or empty
    Scratch<float> sampled;         // where they are not kept, those of the sample: [query][sample_size]
    std::vector<Span> spans;        // all classes, in the order of the look
    size_t sample = 0;              // how many of the spans are read first, as a sample of all classes
    int64_t sample_size = 0, sample_pieces = 0;  // classes in it; its part of the pieces
    std::vector<std::atomic<int>> dear;
    std::vector<std::atomic<float>> threshold;  // what a class has to reach
    std::vector<Masses> pieces;     // [query][piece]: sums that are joined in this order, whichever thread took them
    std::vector<Masses> masses;     // [query]
    int64_t piece_count = 0;
    std::vector<double> bytes;      // read so far for each query
    int threads = 1;

    // The sums of the first `count` pieces.
    Masses joined(int q, int64_t count) const {
        Masses all;
        for (int64_t p = 0; p < count; ++p) all.join(pieces[q * piece_count + p].shift, pieces[q * piece_count + p].sums);
        return all;
    }
    // Estimates of a span of the sample, which `before` classes of the sample precede.
    const float* estimates(int q, size_t span, int64_t before, int64_t padded) const {
        return est.empty() ? sampled.data() + q * sample_size + before : est.data() + q * padded + spans[span].first;
    }
};

enum class Status { done, keep, dear };

// What a sample says of the normaliser: narrow enough as it is (or the sample cannot say), to be refined, or better read densely.
enum class Outlook { narrow, wide, dear };

struct Interval {
    double value, error;
};

struct Answer {
    std::vector<Scored> best;
    double lse = 0, error = kInf;
    bool proved = false, dense = false;
    int64_t rows = 0;
    double bytes = 0;
};

struct Draw {
    int64_t id = -1;
    double z = -kInf, score = -kInf;
    bool proved = false;
};

struct SampleRule {
    int n = 1;
    double temperature = 1;
    int64_t top_k = 0;
    double top_p = 1, min_p = 0;
    uint64_t seed = 0, row0 = 0;
    int64_t class0 = 0;  // the id of the first class, where the layer is a shard of a larger one: noise goes by that
};

// How far the classes of a query were read: what their estimates are off at most, how many deeper levels are in them, and
// those that were scored, which the look's estimates no longer hold.
struct Known {
    Scratch<float> rad;
    Scratch<uint8_t> depth;
    std::vector<Scored> scored;
};

// A class with its key link(z) / T + gumbel.
struct Keyed {
    int64_t id;
    double z, key;
};

// The keys of one draw: upper ends of all classes that are not scored, and the exact ones of those that are.
struct Keys {
    uint32_t draw = 0;
    Scratch<float> upper;
    std::vector<float> largest;  // of each chunk; they may have fallen since
    std::vector<Keyed> exact;
};

// Whether a class is in the nucleus, and whether that is proved.
struct Side {
    bool known = false, inside = false, proved = false;
};

// What a bet on the normaliser takes: the least gap that is scored instead, and the rows that this costs in all.
struct Wager {
    float edge = std::numeric_limits<float>::infinity();
    double cost = kInf;
};

// For every class exp(estimate - shift), how far its term may be from that, and the sum of the former: see executor/bet.cpp.
struct Weighed {
    Scratch<float> middle, gap;
    double sum = 0;
    float shift = 0, slop = 0;
};

// What decides whether class `of` is in the nucleus, and which way it is to be shown: see executor/nucleus.cpp.
struct Sides {
    Scored of;
    double top_p, beta;
    bool inside;
};

struct Crowd;  // kernels/lanes.h
struct Told;

class Executor {
  public:
    const void* weight = nullptr;
    Kind kind = Kind::f32;
    int64_t vocab = 0, dim = 0, padded = 0;
    const float* bias = nullptr;  // [vocab] or null
    double most_norm = 0;         // of any row
    Link link{0, 1.f, 0.f};
    double link_a = 1, link_b = 0;  // of a table: the steepest slope, and twice how far it is off what it stands for
    double link_start = 0, link_step = 1;
    const double* link_values = nullptr;  // [cells + 1] of a table, at its knots
    double link_left = 1, link_right = 1;
    const double* mean = nullptr;
    const void* rotation = nullptr;
    Kind rotation_kind = Kind::f32;
    int64_t rotated_dim = 0;
    const double* centre = nullptr;
    int64_t budget = 0;
    double share = 0.25;
    Source dense, preview;
    std::vector<Deeper> deeper;
    bool has_preview = false;
    const Kernels* kernels = nullptr;

    // Answers for `count` queries [count][dim]; `dense_only` skips the preview.
    std::vector<Answer> ask(const double* hidden, int64_t count, const Question& question, bool dense_only) const;
    void logits(const double* hidden, int64_t count, const int64_t* ids, int64_t m, int threads, double* out) const;
    std::vector<Answer> sample(const double* hidden, int64_t count, const SampleRule& rule, const Question& question,
                               bool dense_only, std::vector<Draw>* draws) const;

    // The logit of a row from its dot product. Where a mapped weight was damaged into NaN or infinity, the class is no
    // rival: comparisons with NaN would have no order, and sorting by them no bounds.
    double exact(double dot, int64_t id) const {
        const double z = bias == nullptr ? dot : dot + bias[id];
        return std::isfinite(z) ? z : -kInf;
    }
    double linked(double z) const {
        if (link.form == 2) return tabled(z);
        return link.form == 0 ? z * link_a + link_b : link_a * std::tanh(z / link_a);
    }

  private:
    double tabled(double z) const {
        const double cells = link.cells, u = (z - link_start) / link_step;
        if (!(u >= 0)) return link_values[0] + (z - link_start) * link_left;
        if (u >= cells) return link_values[static_cast<int64_t>(cells)] + (z - link_start - cells * link_step) * link_right;
        const int64_t i = static_cast<int64_t>(u);
        return link_values[i] +
               (z - (link_start + link_step * static_cast<double>(i))) * ((link_values[i + 1] - link_values[i]) / link_step);
    }

    using Resolve = std::function<Status(Look&, int, int, Answer&)>;  // look, query, threads it may use, answer
    using Finish = std::function<void(const std::vector<int64_t>&)>;  // the rows of the batch that are left

    // executor/query.cpp: looking at all classes
    void run(const double* hidden, const std::vector<int64_t>& rows, const Question& question, bool dense_only,
             const Resolve& resolve, const Finish& finish, std::vector<Answer>& answers) const;
    Look begin(const Source& source, const double* hidden, const std::vector<int64_t>& rows, int threads) const;
    bool all_dear(const double* hidden, const std::vector<int64_t>& rows, const Question& question, int threads,
                  std::vector<Answer>& answers) const;
    void look_at_all(Look& look, const Question& question, bool sample_alone = false) const;
    void scan(const Look& look, int64_t first, int64_t n, float* est, int64_t stride, float* scratch) const;
    bool gather(Look& look, const Question& question, int q, int thread, int64_t first, int64_t n, float* est,
                Masses& masses, float* scratch) const;
    void seed(Look& look, int q, const Question& question, bool judge) const;
    double worth(const Look& look) const;
    double bearable(const Look& look, int64_t seen, int64_t k) const;
    void score(const double* hidden, std::vector<Scored>& rows, int threads) const;
    float largest(const Question& question, int64_t row, int64_t first, int64_t n, float* est, bool* finite) const;
    bool by_budget(const Look& look) const { return budget > 0 && look.source == &preview; }
    double row_bytes() const { return static_cast<double>(dim) * (kind == Kind::f32 ? 4 : 2); }

    // executor/prepare.cpp: a query as the levels want it
    void prepare(const Source& source, Look& look) const;
    std::vector<double> turn(const Source& source, const Look& look) const;
    void prepare_one(const Source& source, int q, const double* turned, Look& look) const;

    void prepare_lanes(Crowd& crowd) const;
    void prepare_lane(Crowd& crowd, int q, const double* turned) const;

    // executor/batch.cpp: many queries side by side
    bool side_by_side(const Question& question, int64_t count) const;
    std::vector<int64_t> ask_lanes(const double* hidden, int64_t count, const Question& question, std::vector<Answer>& answers) const;
    double most_told(const Question& question) const;
    void sample_lanes(Crowd& crowd, const Question& question) const;
    void scan_lanes(const Crowd& crowd, int64_t piece, float* est) const;
    void start_lane(Crowd& crowd, const Question& question, int q) const;
    void aim_lane(Crowd& crowd, const Question& question, int q, std::vector<double>& sums) const;
    void pass_lanes(Crowd& crowd) const;
    Told told_of(const Crowd& crowd, int q) const;
    void score_narrow(const Crowd& crowd, int q, std::vector<Scored>& rows) const;
    std::vector<Scored> score_hits(const Crowd& crowd, const Question& question, int q, const std::vector<int32_t>& which,
                                   Told& told, bool narrow = false) const;
    bool best_of_lane(const Crowd& crowd, const Question& question, int q, Told& told, Answer& answer) const;
    bool bet_lane(const Crowd& crowd, const Question& question, int q, Told& told, Interval& lse) const;
    bool resolve_lane(const Crowd& crowd, const Question& question, int q, Answer& answer) const;

    // executor/dense.cpp: every row in float64
    using Visit = std::function<void(int64_t piece, int q, int64_t first, int64_t n, const double* z)>;
    void every_logit(const double* hidden, const std::vector<int64_t>& rows, const Question& question,
                     const Visit& visit) const;
    int64_t pieces() const;

    // executor/topk.cpp: ids
    Status resolve(Look& look, int q, const Question& question, int threads, Answer& answer) const;
    std::vector<Scored> spend_budget(Look& look, int q, const Question& question, int threads, Interval& lse) const;
    Status resolve_budget(Look& look, int q, const Question& question, int threads, Answer& answer) const;
    bool best_of(Look& look, int q, int64_t k, int threads, std::vector<Scored>& best, std::vector<Scored>& scored,
                 std::vector<float>& est, std::vector<float>& upper, Answer& answer, Known* known = nullptr) const;
    void look_deeper(const Look& look, int q, int level, const int32_t* ids, int64_t count, float* est, float* rad) const;
    void finish(const double* hidden, const std::vector<int64_t>& rows, const Question& question,
                std::vector<Answer>& answers) const;

    // executor/lse.cpp: the normaliser
    Interval normaliser(const Look& look, int q, const Question& question, const std::vector<Scored>& scored,
                        const std::vector<float>& est, const std::vector<float>& upper) const;
    Status refine(Look& look, int q, const Question& question, int threads, std::vector<Scored>& scored, Interval& lse,
                  Answer& answer) const;
    Outlook refining(const Look& look, int q, const Question& question) const;
    Scratch<float> radii(const Look& look, int q, int threads, bool likely = false) const;
    void read_deeper(Look& look, int q, int level, const std::vector<int32_t>& ids, int threads, Scratch<float>& rad,
                     Answer& answer) const;

    // executor/bet.cpp: the normaliser from a sample
    Status bet(Look& look, int q, const Question& question, int threads, std::vector<Scored>& scored, Interval& lse,
               Answer& answer) const;
    void weigh(const Look& look, int q, double beta, int threads, Weighed& w) const;
    Wager cheapest(const Weighed& w, double known, double aim, double odds, double price, double left) const;
    void look_closer(Look& look, int q, int level, float edge, double beta, int threads, Weighed& w, Answer& answer) const;
    double left_by(const Look& look, int q, size_t level) const;
    using TermOf = std::function<double(const Scored&)>;
    uint64_t key_of(const Look& look, int q, const Question& question) const;
    std::vector<double> sample_terms(const Look& look, int q, const Weighed& w, const Scratch<double>& before, uint64_t key,
                                     uint32_t round, int64_t count, int threads, const TermOf& term, Answer& answer) const;
    double float_error(double shift, double beta) const;
    double dot_error(const double* hidden) const;

    // executor/nucleus.cpp
    Side side_of_nucleus(Look& look, int q, const Question& question, double top_p, const Scored& of, double odds, uint64_t key,
                         int threads, Known& known, Answer& answer) const;
    double take_sides(const Sides& sides, const Weighed& w, const float* est, const float* rad, int64_t n, float* middle,
                      float* gap) const;
    void balance(const Look& look, int q, const Sides& sides, int threads, const Known& known, Weighed& w,
                 Scratch<double>& runs) const;
    bool widest_sides(const Look& look, const Weighed& w, double claim, double target, double odds, int threads, const Known& known,
                      std::vector<int32_t>& ids) const;
    void narrow(Look& look, int q, const Sides& sides, const std::vector<int32_t>& ids, int threads, Known& known, Weighed& w,
                Scratch<double>& runs, Answer& answer) const;

    // executor/sample.cpp
    Status resolve_sample(Look& look, int q, const Question& question, const SampleRule& rule, int threads,
                          Draw* draws, Answer& answer) const;
    void start_knowing(Look& look, int q, int threads, Known& known) const;
    bool know(Look& look, int q, const Question& question, int threads, std::vector<Scored>& best, Known& known,
              Answer& answer) const;
    void read_on(Look& look, int q, const std::vector<int32_t>& ids, int threads, Known& known, Answer& answer) const;
    void score_known(Look& look, int q, std::vector<Scored>& rows, int threads, Known& known, Answer& answer) const;
    Status draw_filtered(Look& look, int q, const Question& question, const SampleRule& rule, int threads,
                         Draw* draws, Answer& answer) const;
    bool best_keys(Look& look, int q, const SampleRule& rule, int64_t m, int threads, Known& known, Keys& keys,
                   std::vector<Keyed>& best, Answer& answer) const;
    void upper_keys(const Look& look, int q, const SampleRule& rule, int threads, const Known& known, Keys& keys) const;
    void closer_keys(const Look& look, int q, const SampleRule& rule, const std::vector<int32_t>& ids, int threads,
                     const Known& known, Keys& keys) const;
    void finish_samples(const double* hidden, const std::vector<int64_t>& rows, const Question& question,
                        const SampleRule& rule, std::vector<Draw>& draws, std::vector<Answer>& answers) const;
    std::vector<Scored> filtered(std::vector<Scored> sorted, const SampleRule& rule) const;
    Draw pick(const std::vector<Scored>& kept, const SampleRule& rule, uint64_t row, uint32_t draw) const;

    mutable std::atomic<int> keeping_{0};  // how often lately a query came back for its estimates
};

// The Gumbel noise of a class: Philox4x32-10 words, see noise() in kernels/kernels.h.
double gumbel(const Kernels& kernels, uint64_t seed, uint64_t row, uint32_t draw, int64_t id);

}  // namespace headlong
