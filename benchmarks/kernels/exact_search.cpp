// Two published exact searches for large inner products, written from their papers' descriptions: rivals, to be measured.
//
//   FEXIPRO (Li, Chan, Yiu, Mamoulis; SIGMOD 2017), without its reduction to positive numbers ("F-SI"): rows p in the order of
//   their lengths, the longest first, in coordinates in which p . q = head + rest. With t the k-th best product so far:
//     |p| |q| <= t                                              the search is over
//     head of whole numbers + |p_rest| |q_rest| <= t            next row
//     head of whole numbers + rest of whole numbers <= t        next row
//     head of floats + |p_rest| |q_rest| <= t                   next row
//     p . q                                                     scored
//
//   MAXIMUS (Abuzaid and others; ICDE 2019, arXiv 1706.01449), its walk for one user: a list of all rows for every cluster of
//   queries, in the order of |p| cos(max(0, angle(p, centre) - widest)); a query walks the list of its cluster until
//   |q| times that is at most t. `widest` is the largest angle of a query of the cluster to its centre.
//
// Both compare bounds with room for rounding, and score the layer's own rows in float64, so ids are float64's. Each returns how
// many rows were scored, and adds the bytes that it read. Built and called by exact_rivals.py.

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

struct Best {
  int32_t k, found = 0;
  int64_t* ids;
  double scores[1024];

  double worst() const { return found < k ? -INFINITY : scores[k - 1]; }

  void add(double score, int64_t id) {
    if (found == k && score <= scores[k - 1]) return;
    int32_t place = found < k ? found++ : k - 1;
    for (; place > 0 && scores[place - 1] < score; --place) scores[place] = scores[place - 1], ids[place] = ids[place - 1];
    scores[place] = score, ids[place] = id;
  }
};

double exact(const float* row, const float* query, int64_t dim) {
  double sum = 0;
  for (int64_t j = 0; j < dim; ++j) sum += double(row[j]) * double(query[j]);
  return sum;
}

float floats(const float* row, const float* query, int64_t dim) {
  float sum = 0;
  for (int64_t j = 0; j < dim; ++j) sum += row[j] * query[j];
  return sum;
}

int32_t whole(const int8_t* row, const int8_t* query, int64_t dim) {
  int32_t sum = 0;
  for (int64_t j = 0; j < dim; ++j) sum += int32_t(row[j]) * int32_t(query[j]);
  return sum;
}

}  // namespace

// What is kept of the rows, in the order of their lengths. Codes are the whole parts of rotated coordinates in units; `sums` add
// the codes' absolute values to the number of coordinates.
struct Rows {
  const float* rows;  // [vocab, dim], as they are
  const float* heads; // [vocab, head], rotated
  const int8_t* head_codes; // [vocab, head]
  const int8_t* rest_codes; // [vocab, dim - head]
  const int32_t* head_sums;
  const int32_t* rest_sums;
  const float* lengths;
  const float* rests;  // lengths beyond the head
  const int64_t* ids;
  const double* turn;  // [dim, dim]: what a query's coordinates are rotated and scaled by
  int64_t vocab, dim, head;
  double head_unit, rest_unit;
};

namespace {

constexpr int64_t MOST = 4096;
constexpr double UNITS = 100, UP = 1 + 0x1p-20;

double length_of(const double* row, int64_t dim) {
  double sum = 0;
  for (int64_t j = 0; j < dim; ++j) sum += row[j] * row[j];
  return std::sqrt(sum);
}

struct Codes {
  alignas(64) int8_t codes[MOST] = {};
  double unit = 0;
  int32_t sum = 0;

  Codes(const double* values, int64_t dim) {
    double most = 1e-30;
    for (int64_t j = 0; j < dim; ++j) most = std::fmax(most, std::fabs(values[j]));
    unit = most / UNITS;
    for (int64_t j = 0; j < dim; ++j) {
      codes[j] = int8_t(values[j] / unit);
      sum += codes[j] < 0 ? -codes[j] : codes[j];
    }
  }
};

struct Turned {
  double values[MOST] = {};
  alignas(64) float head[MOST] = {};

  Turned(const Rows& all, const float* query) {
    for (int64_t i = 0; i < all.dim; ++i)
      for (int64_t j = 0; j < all.dim; ++j) values[j] += all.turn[i * all.dim + j] * query[i];
    for (int64_t j = 0; j < all.head; ++j) head[j] = float(values[j]);
  }
};

}  // namespace

extern "C" int64_t fexipro(const Rows* all, const float* query, int32_t k, int64_t* ids, int64_t* bytes) {
  const int64_t tail = all->dim - all->head;
  const Turned turned(*all, query);
  const double* beyond = turned.values + all->head;
  const Codes head(turned.values, all->head), rest(beyond, tail);
  const double head_unit = head.unit * all->head_unit, rest_unit = rest.unit * all->rest_unit;
  const double length = std::sqrt(exact(query, query, all->dim)) * UP;
  const double rest_length = length_of(beyond, tail) * UP;
  const double lost = length * double(all->dim + 8) * 0x1p-23;  // by rounding, for a row of length one
  Best best{k, 0, ids, {}};
  int64_t scored = 0, read = 8 * all->dim * all->dim;
  for (int64_t i = 0; i < all->vocab; ++i) {
    const double worst = best.worst();
    read += 4;
    if (all->lengths[i] * length <= worst) break;
    if (best.found == k) {
      const double cut = all->rests[i] * rest_length, least = worst - lost * all->lengths[i];
      const int32_t code = whole(all->head_codes + i * all->head, head.codes, all->head);
      const double bound = head_unit * double(code + all->head_sums[i] + head.sum);
      read += 8 + all->head;
      if (bound + cut <= least) continue;
      const int32_t more = whole(all->rest_codes + i * tail, rest.codes, tail);
      read += 4 + tail;
      if (bound + rest_unit * double(more + all->rest_sums[i] + rest.sum) <= least) continue;
      read += 4 * all->head;
      if (floats(all->heads + i * all->head, turned.head, all->head) + cut <= least) continue;
    }
    best.add(exact(all->rows + i * all->dim, query, all->dim), all->ids[i]);
    read += 4 * all->dim + 8;
    ++scored;
  }
  *bytes += read;
  return scored;
}

struct Lists {
  const float* rows;     // [vocab, dim]
  const double* centres; // [clusters, dim], of length one
  const double* widest;  // [clusters]
  const float* bounds;   // [clusters, vocab], the largest first
  const int32_t* order;  // [clusters, vocab]
  int64_t vocab, dim, clusters;
};

extern "C" int64_t maximus(const Lists* all, const float* query, int32_t k, int64_t* ids, int64_t* bytes) {
  int64_t home = 0;
  double nearest = -INFINITY;
  for (int64_t cluster = 0; cluster < all->clusters; ++cluster) {
    double sum = 0;
    for (int64_t j = 0; j < all->dim; ++j) sum += all->centres[cluster * all->dim + j] * query[j];
    if (sum > nearest) nearest = sum, home = cluster;
  }
  const double length = std::sqrt(exact(query, query, all->dim));
  const bool known = std::acos(std::fmin(1.0, nearest / length)) <= all->widest[home];
  const float* bounds = all->bounds + home * all->vocab;
  const int32_t* order = all->order + home * all->vocab;
  Best best{k, 0, ids, {}};
  int64_t i = 0;
  for (; i < all->vocab; ++i) {
    if (known && bounds[i] * length <= best.worst()) break;
    best.add(exact(all->rows + order[i] * all->dim, query, all->dim), order[i]);
  }
  *bytes += i * (8 + 4 * all->dim) + 8 * all->clusters * all->dim;
  return i;
}
