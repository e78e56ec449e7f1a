// Opening nodes, and the two ways through them: best first for the likeliest classes, upwards for given ones.
#include "structured/descent.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <unordered_map>

#include "runtime/pool.h"

namespace headlong {
namespace {

constexpr int64_t kShared = int64_t{1} << 18;  // weights from which opening one node is worth several threads
constexpr int64_t kPiece = 256;                // rows that a thread takes at once

// One query: what each part sees of the hidden vector, and what has been read.
class Reading {
  public:
    Reading(const Steps& steps, const double* hidden, int threads, Read* read)
        : steps_(steps), hidden_(hidden), threads_(threads), read_(read), views_(steps.parts.size()) {}

    // Writes the log-probabilities of the node's branches, none above 0.
    void open(int64_t node, double* out) {
        const StepPart& part = steps_.parts[steps_.part[node]];
        const int64_t count = steps_.rows(node), first = steps_.first[node], row = part.width * item_bytes(part.kind);
        const double* x = view(steps_.part[node]);
        dots(static_cast<const char*>(part.weight) + first * row, part.kind, part.width, count, x, out);
        if (part.bias != nullptr)
            for (int64_t i = 0; i < count; ++i) out[i] += part.bias[first + i];
        read_->rows += count;
        read_->bytes += static_cast<double>(count * row);
        if (steps_.two_way) {
            const double z = out[0], rest = std::log1p(std::exp(-std::fabs(z)));
            out[0] = -(rest + std::max(-z, 0.0));
            out[1] = -(rest + std::max(z, 0.0));
            return;
        }
        const double most = *std::max_element(out, out + count);
        double sum = 0;
        for (int64_t i = 0; i < count; ++i) sum += std::exp(out[i] - most);
        const double lse = std::log(sum);
        for (int64_t i = 0; i < count; ++i) out[i] = std::min((out[i] - most) - lse, 0.0);
    }

  private:
    const double* view(int64_t number) {
        const StepPart& part = steps_.parts[number];
        if (part.projection == nullptr) return hidden_;
        std::vector<double>& x = views_[number];
        if (x.empty()) {
            x.resize(part.width);
            dots(part.projection, part.projection_kind, steps_.dim, part.width, hidden_, x.data());
            read_->bytes += static_cast<double>(part.width * steps_.dim * item_bytes(part.projection_kind));
        }
        return x.data();
    }

    void dots(const void* rows, Kind kind, int64_t width, int64_t count, const double* x, double* out) const {
        if (threads_ < 2 || count * width < kShared) {
            steps_.kernels->dot_rows(rows, kind, width, nullptr, count, x, out);
            return;
        }
        const int64_t pieces = (count + kPiece - 1) / kPiece;
        run_parallel(static_cast<int>(std::min<int64_t>(pieces, threads_)), [&](int worker) {
            const int64_t workers = std::min<int64_t>(pieces, threads_);
            for (int64_t piece = worker; piece < pieces; piece += workers) {
                const int64_t start = piece * kPiece, n = std::min(kPiece, count - start);
                steps_.kernels->dot_rows(static_cast<const char*>(rows) + start * width * item_bytes(kind), kind, width, nullptr, n,
                                         x, out + start);
            }
        });
    }

    const Steps& steps_;
    const double* hidden_;
    const int threads_;
    Read* read_;
    std::vector<std::vector<double>> views_;
};

}  // namespace

std::vector<Scored> descend(const Steps& steps, const double* hidden, int64_t k, int threads, Read* read) {
    Reading reading(steps, hidden, threads, read);
    std::vector<double> values;
    std::vector<Scored> best;  // a heap, the worst of them on top
    using Open = std::pair<double, int64_t>;
    std::priority_queue<Open> frontier;
    frontier.emplace(0.0, 0);
    double floor = -kInf;
    while (!frontier.empty() && frontier.top().first >= floor) {
        const auto [above, node] = frontier.top();
        frontier.pop();
        const int64_t fan = steps.fan(node);
        values.resize(std::max<size_t>(values.size(), fan));
        reading.open(node, values.data());
        const int64_t* children = steps.children + steps.starts[node];
        for (int64_t i = 0; i < fan; ++i) {
            const double value = above + values[i];
            if (value < floor) continue;
            if (children[i] >= 0) {
                frontier.emplace(value, children[i]);
                continue;
            }
            const Scored found{~children[i], value};
            if (static_cast<int64_t>(best.size()) == k) {
                if (!better(found, best.front())) continue;
                std::pop_heap(best.begin(), best.end(), better);
                best.back() = found;
            } else {
                best.push_back(found);
            }
            std::push_heap(best.begin(), best.end(), better);
            if (static_cast<int64_t>(best.size()) == k) floor = best.front().z;
        }
    }
    std::sort(best.begin(), best.end(), better);
    return best;
}

void follow(const Steps& steps, const double* hidden, const int64_t* ids, int64_t m, int threads, double* out, Read* read) {
    Reading reading(steps, hidden, threads, read);
    std::unordered_map<int64_t, std::vector<double>> opened;
    for (int64_t j = 0; j < m; ++j) {
        double sum = 0;
        for (int64_t branch = steps.leaf[ids[j]]; branch >= 0;) {
            const int64_t node = steps.owner[branch];
            std::vector<double>& values = opened[node];
            if (values.empty()) {
                values.resize(steps.fan(node));
                reading.open(node, values.data());
            }
            sum += values[branch - steps.starts[node]];
            branch = steps.above[node];
        }
        out[j] = sum;
    }
}

}  // namespace headlong
