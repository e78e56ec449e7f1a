// Resolving ids and the normaliser of one query from what a look at all classes gathered.
//
// ids: the k best estimates are scored exactly, their worst is the threshold; whatever can still reach it is scored,
// best first. normaliser: exact terms where scored, an interval elsewhere; where that is too wide, the rows with the
// widest terms are scored until it is not.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>

#include "executor.h"
#include "pool.h"

namespace headlong {
namespace {

constexpr int kBins = 512;         // of exp(upper), half an octave each
constexpr double kSumError = 0x1p-16;  // relative: float sums and exponentials of a look

int bin_of(float x) {
    int32_t word;
    std::memcpy(&word, &x, 4);
    return word >> 22;  // sign is 0: eight bits of exponent and one of mantissa
}

struct Histogram {
    std::vector<double> low = std::vector<double>(kBins), high = std::vector<double>(kBins);
    std::vector<int64_t> count = std::vector<int64_t>(kBins);
};

double half_width(double low, double high) { return low > 0 ? 0.5 * std::log(high / low) : kInf; }

}  // namespace

std::vector<Answer> Executor::ask(const double* hidden, int64_t count, const Question& question,
                                  bool dense_only) const {
    std::vector<Answer> answers(count);
    std::vector<int64_t> rows(count);
    std::iota(rows.begin(), rows.end(), 0);
    Question asked = question;
    asked.keep = question.keep || (budget > 0 && has_preview && !dense_only);
    run(
        hidden, rows, asked, dense_only,
        [&](Look& look, int q, int threads, Answer& answer) {
            const bool by_budget = budget > 0 && look.source == &preview;
            return by_budget ? resolve_budget(look, q, question, threads, answer)
                             : resolve(look, q, question, threads, answer);
        },
        [&](const double* h, int64_t row, int threads, Answer& answer) { finish(h, row, question, threads, answer); },
        answers);
    return answers;
}

Status Executor::resolve(Look& look, int q, const Question& question, int threads, Answer& answer) const {
    std::vector<Scored> scored;
    std::vector<float> est, upper;
    answer.best.clear();
    if (question.k > 0 && !best_of(look, q, question.k, threads, answer.best, scored, est, upper)) {
        answer.rows += static_cast<int64_t>(scored.size());
        return Status::dear;
    }
    const int64_t row_bytes = dim * (kind == Kind::f32 ? 4 : 2);
    Interval lse = normaliser(look, q, question.beta, scored, est, upper);
    lse.error += dot_error(&look.hidden[q * dim]);
    Status status = Status::done;
    if (lse.error > question.eps) {
        status = look.est.empty() ? Status::keep : refine(look, q, question, threads, scored, lse);
    }
    answer.rows += static_cast<int64_t>(scored.size());
    answer.bytes += static_cast<double>(scored.size()) * row_bytes;
    answer.lse = lse.value;
    answer.error = lse.error;
    answer.proved = true;
    return status;
}

// The k best classes, proved. `scored` gets all rows scored on the way, `est` and `upper` what was thought of them.
bool Executor::best_of(Look& look, int q, int64_t k, int threads, std::vector<Scored>& best,
                       std::vector<Scored>& scored, std::vector<float>& est, std::vector<float>& upper) const {
    struct Candidate {
        int32_t id;
        float est, upper;
    };
    std::vector<float> lowers;
    size_t total = 0;
    for (int t = 0; t < look.threads; ++t) {
        const Part& part = look.parts[static_cast<size_t>(q) * look.threads + t];
        lowers.insert(lowers.end(), part.best.begin(), part.best.end());
        total += part.ids.size();
    }
    float floor = -std::numeric_limits<float>::infinity();
    if (static_cast<int64_t>(lowers.size()) >= k) {
        std::nth_element(lowers.begin(), lowers.begin() + (k - 1), lowers.end(), std::greater<float>());
        floor = lowers[k - 1];
    }
    std::vector<Candidate> all;
    all.reserve(total);
    for (int t = 0; t < look.threads; ++t) {
        const Part& part = look.parts[static_cast<size_t>(q) * look.threads + t];
        for (size_t i = 0; i < part.ids.size(); ++i)
            if (part.upper[i] >= floor) all.push_back({part.ids[i], part.est[i], part.upper[i]});
    }
    const int64_t sure = std::min<int64_t>(k, static_cast<int64_t>(all.size()));
    if (sure == 0) return true;
    const double* hidden = &look.hidden[q * dim];
    auto score_range = [&](size_t from, size_t to) {
        std::vector<Scored> rows(to - from);
        for (size_t i = from; i < to; ++i) rows[i - from] = {all[i].id, 0};
        score(hidden, rows, threads);
        for (size_t i = from; i < to; ++i) {
            scored.push_back(rows[i - from]);
            est.push_back(all[i].est);
            upper.push_back(all[i].upper);
            best.push_back(rows[i - from]);
        }
        std::sort(best.begin(), best.end(), better);
        if (static_cast<int64_t>(best.size()) > k) best.resize(k);
    };
    std::nth_element(all.begin(), all.begin() + (sure - 1), all.end(),
                     [](const Candidate& a, const Candidate& b) { return a.est > b.est; });
    score_range(0, sure);
    auto open = std::partition(all.begin() + sure, all.end(), [&](const Candidate& c) { return c.upper >= best.back().z; });
    const int64_t left = open - (all.begin() + sure);
    if (left > std::max<int64_t>(static_cast<int64_t>(share * vocab), 2 * k)) return false;
    std::sort(all.begin() + sure, open, [](const Candidate& a, const Candidate& b) { return a.upper > b.upper; });
    const size_t stop = static_cast<size_t>(open - all.begin()), grain = threads > 1 ? 64 : 16;
    for (size_t at = sure; at < stop && all[at].upper >= best.back().z;) {
        size_t to = at;
        while (to < stop && to < at + grain && all[to].upper >= best.back().z) ++to;
        score_range(at, to);
        at = to;
    }
    return true;
}

// What float32 arithmetic may add to lse: link, temperature and shift of terms within 64 nats of the largest one.
double Executor::float_error(double shift, double beta) const {
    const double cap = link.form == 1 ? link_a * beta * 0x1p-19 : 0;
    return (std::fabs(shift) + 64) * 0x1p-22 + cap;
}

// What float64 accumulation may add to an exact logit.
double Executor::dot_error(const double* hidden) const {
    double square = 0;
    for (int64_t j = 0; j < dim; ++j) square += hidden[j] * hidden[j];
    return static_cast<double>(dim + 8) * 0x1p-53 * (most_norm * std::sqrt(square) + 1);
}

Interval Executor::normaliser(const Look& look, int q, double beta, const std::vector<Scored>& scored,
                              const std::vector<float>& est, const std::vector<float>& upper) const {
    const Part* parts = &look.parts[static_cast<size_t>(q) * look.threads];
    double shift = -kInf;
    for (int t = 0; t < look.threads; ++t) shift = std::max(shift, parts[t].shift);
    for (const Scored& s : scored) shift = std::max(shift, linked(s.z) * beta);
    if (shift == -kInf) return {-kInf, 0};
    double low = 0, high = 0, exact = 0;
    for (int t = 0; t < look.threads; ++t) {
        if (parts[t].shift == -kInf) continue;
        const double fade = std::exp(parts[t].shift - shift);
        low += parts[t].low * fade;
        high += parts[t].high * fade;
    }
    const double slop = kSumError * high;
    for (size_t i = 0; i < scored.size(); ++i) {
        const double rad = static_cast<double>(upper[i]) - est[i];
        const double term = std::exp(linked(scored[i].z) * beta - shift);
        low += term - std::exp(linked(est[i] - rad) * beta - shift);
        high += term - std::exp(linked(est[i] + rad) * beta - shift);
        exact += term;
    }
    low = std::max(low - slop, exact);
    high += slop;
    const double error = half_width(low, high) + float_error(shift, beta);
    // Exponentials are clamped at exp(88): an interval that wide says nothing.
    if (!(error < 20)) return {shift + std::log(std::max(low, 1e-300)), kInf};
    return {shift + 0.5 * (std::log(low) + std::log(high)), error};
}

// Scores the rows with the largest exp(upper) until the rest leaves lse within eps. Scored classes leave look.est.
Status Executor::refine(Look& look, int q, const Question& question, int threads, std::vector<Scored>& scored,
                        Interval& lse) const {
    float* est = look.est.data() + q * padded;
    const float none = -std::numeric_limits<float>::infinity();
    double shift = -kInf;
    for (int t = 0; t < look.threads; ++t)
        shift = std::max(shift, look.parts[static_cast<size_t>(q) * look.threads + t].shift);
    double exact = 0;
    for (const Scored& s : scored) {
        exact += std::exp(linked(s.z) * question.beta - shift);
        est[s.id] = none;
    }
    const int64_t chunks = (padded + kChunk - 1) / kChunk;
    const Radius& radius = look.prepared.radius[q];
    auto chunk_exps = [&](int64_t c, float* low, float* high) {
        float rad[kChunk];
        const int64_t n = std::min<int64_t>(kChunk, padded - c * kChunk);
        kernels->radius(radius, c * kChunk, n, rad);
        kernels->interval_exps(est + c * kChunk, rad, n, link, static_cast<float>(question.beta),
                               static_cast<float>(shift), low, high);
        return n;
    };
    std::vector<Histogram> each(threads);
    std::atomic<int64_t> next{0};
    run_parallel(threads, [&](int t) {
        float low[kChunk], high[kChunk];
        for (int64_t c = next++; c < chunks; c = next++) {
            const int64_t n = chunk_exps(c, low, high);
            for (int64_t i = 0; i < n; ++i) {
                const int b = bin_of(high[i]);
                each[t].low[b] += low[i];
                each[t].high[b] += high[i];
                each[t].count[b] += high[i] > 0;
            }
        }
    });
    Histogram& all = each[0];
    for (int t = 1; t < threads; ++t)
        for (int b = 0; b < kBins; ++b) {
            all.low[b] += each[t].low[b];
            all.high[b] += each[t].high[b];
            all.count[b] += each[t].count[b];
        }
    const double fixed = float_error(shift, question.beta) + dot_error(&look.hidden[q * dim]);
    const double aim = question.eps - fixed;
    double rest_low = std::accumulate(all.low.begin(), all.low.end(), 0.0);
    double rest_high = std::accumulate(all.high.begin(), all.high.end(), 0.0);
    double known = exact;
    int64_t rows = 0;
    int cut = kBins;
    while (cut > 1) {
        // Bins above exp(87) may be clamped: always scored.
        const bool clamped = cut > bin_of(6e37f);
        if (!clamped && half_width((known + rest_low) * (1 - 0x1p-17), (known + rest_high) * (1 + 0x1p-17)) <= aim) break;
        --cut;
        known += all.low[cut];
        rest_low -= all.low[cut];
        rest_high -= all.high[cut];
        rows += all.count[cut];
        if (static_cast<double>(rows) > share * static_cast<double>(vocab)) return Status::dear;
    }
    if (cut <= 1 || aim <= 0) return Status::dear;
    std::vector<Scored> wanted;
    std::mutex joining;
    next.store(0);
    run_parallel(threads, [&](int) {
        float low[kChunk], high[kChunk];
        std::vector<Scored> own;
        for (int64_t c = next++; c < chunks; c = next++) {
            const int64_t n = chunk_exps(c, low, high);
            for (int64_t i = 0; i < n; ++i)
                if (bin_of(high[i]) >= cut) own.push_back({c * kChunk + i, 0});
        }
        std::lock_guard<std::mutex> lock(joining);
        wanted.insert(wanted.end(), own.begin(), own.end());
    });
    score(&look.hidden[q * dim], wanted, threads);
    for (const Scored& s : wanted) {
        exact += std::exp(linked(s.z) * question.beta - shift);
        est[s.id] = none;
    }
    scored.insert(scored.end(), wanted.begin(), wanted.end());
    rest_low = std::accumulate(all.low.begin(), all.low.begin() + cut, 0.0);
    rest_high = std::accumulate(all.high.begin(), all.high.begin() + cut, 0.0);
    const double low = exact + rest_low * (1 - 0x1p-17), high = exact + rest_high * (1 + 0x1p-17);
    lse = {shift + 0.5 * (std::log(low) + std::log(high)), half_width(low, high) + fixed};
    return lse.error <= question.eps ? Status::done : Status::dear;
}

// SVD-softmax as published: the `budget` best estimates are scored, the others keep their preview in the normaliser.
Status Executor::resolve_budget(Look& look, int q, const Question& question, int threads, Answer& answer) const {
    float* est = look.est.data() + q * padded;
    const float none = -std::numeric_limits<float>::infinity();
    std::vector<float> order(est, est + vocab);
    const int64_t n = std::min(budget, vocab);
    std::nth_element(order.begin(), order.begin() + (n - 1), order.end(), std::greater<float>());
    std::vector<Scored> scored;
    scored.reserve(n);
    for (int64_t pass = 0; pass < 2; ++pass)  // above the n-th largest first, then its equals, smaller ids first
        for (int64_t i = 0; i < vocab && static_cast<int64_t>(scored.size()) < n; ++i)
            if (est[i] > none && (pass == 0 ? est[i] > order[n - 1] : est[i] == order[n - 1])) scored.push_back({i, 0});
    score(&look.hidden[q * dim], scored, threads);
    bool finite = true;
    double shift = linked(kernels->largest(est, padded, &finite)) * question.beta;
    for (const Scored& s : scored) {
        shift = std::max(shift, linked(s.z) * question.beta);
        est[s.id] = none;
    }
    double low = 0, high = 0;
    const std::vector<float> rad(kChunk, 0.f);
    for (int64_t c = 0; c < padded; c += kChunk)
        kernels->interval_sums(est + c, rad.data(), std::min<int64_t>(kChunk, padded - c), 0.f, link,
                               static_cast<float>(question.beta), static_cast<float>(shift), &low, &high);
    for (const Scored& s : scored) low += std::exp(linked(s.z) * question.beta - static_cast<float>(shift));
    answer.rows = static_cast<int64_t>(scored.size());
    answer.bytes += static_cast<double>(scored.size()) * dim * (kind == Kind::f32 ? 4 : 2);
    const size_t k = std::min<size_t>(question.k, scored.size());
    std::partial_sort(scored.begin(), scored.begin() + k, scored.end(), better);
    answer.best.assign(scored.begin(), scored.begin() + k);
    answer.lse = static_cast<float>(shift) + std::log(low);
    answer.error = kInf;
    answer.proved = false;
    return Status::done;
}

// Every row in float64: what is left when intervals cannot help (ties all over, logits beyond float32).
void Executor::finish(const double* hidden, int64_t row, const Question& question, int threads, Answer& answer) const {
    struct Own {
        double shift = -kInf, sum = 0;
        std::vector<Scored> best;
    };
    std::vector<Own> each(threads);
    std::atomic<int64_t> next{0};
    const uint8_t* mask = question.mask == nullptr ? nullptr : question.mask + (question.mask_per_row ? row * vocab : 0);
    const int64_t k = question.k, row_bytes = dim * (kind == Kind::f32 ? 4 : 2);
    run_parallel(threads, [&](int t) {
        Own& own = each[t];
        double z[kBlock];
        for (int64_t first = kBlock * next++; first < vocab; first = kBlock * next++) {
            const int64_t n = std::min<int64_t>(kBlock, vocab - first);
            kernels->dot_rows(static_cast<const char*>(weight) + first * row_bytes, kind, dim, nullptr, n, hidden, z);
            for (int64_t i = 0; i < n; ++i) {
                const int64_t id = first + i;
                if (mask != nullptr && mask[id] == 0) continue;
                const Scored s{id, z[i] + (bias == nullptr ? 0.0 : bias[id])};
                const double f = linked(s.z) * question.beta;
                if (f > own.shift) {
                    own.sum = own.sum * std::exp(own.shift - f) + 1;
                    own.shift = f;
                } else {
                    own.sum += std::exp(f - own.shift);
                }
                if (k == 0) continue;
                // A heap with the worst of the best at its front.
                if (static_cast<int64_t>(own.best.size()) == k) {
                    if (!better(s, own.best.front())) continue;
                    std::pop_heap(own.best.begin(), own.best.end(), better);
                    own.best.back() = s;
                } else {
                    own.best.push_back(s);
                }
                std::push_heap(own.best.begin(), own.best.end(), better);
            }
        }
    });
    double shift = -kInf, sum = 0;
    answer.best.clear();
    for (const Own& own : each) {
        shift = std::max(shift, own.shift);
        answer.best.insert(answer.best.end(), own.best.begin(), own.best.end());
    }
    for (const Own& own : each)
        if (own.shift > -kInf) sum += own.sum * std::exp(own.shift - shift);
    std::sort(answer.best.begin(), answer.best.end(), better);
    if (static_cast<int64_t>(answer.best.size()) > k) answer.best.resize(k);
    answer.lse = shift == -kInf ? -kInf : shift + std::log(sum);
    // Float64 all the way: the dot products, a sum of positive terms, an exp and a link of a few roundings each.
    answer.error = dot_error(hidden) + 0x1p-52 * (static_cast<double>(vocab) / threads + 16 + 4 * std::fabs(shift));
    answer.proved = true;
    answer.rows += vocab;
    answer.bytes += static_cast<double>(vocab * row_bytes);
}

}  // namespace headlong
