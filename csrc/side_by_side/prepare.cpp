// A group of queries as the levels want them, one in each lane.
#include "executor/query_codes.h"
#include "runtime/pool.h"
#include "runtime/shared_work.h"
#include "side_by_side/state.h"

namespace headlong {

namespace {

void prepare_in_lane(const Executor& e, BatchState& batch, int q, const double* rotated) {
    const double* h = &batch.look.hidden[q * e.dim];
    const int64_t lanes = batch.lanes;
    double sum = 0;
    const double norm = sum_of(0, e.dim, [&](int64_t j) { return e.mean == nullptr ? h[j] * h[j] : (h[j] - e.mean[j]) * (h[j] - e.mean[j]); });
    if (e.centre != nullptr) sum = sum_of(0, e.dim, [&](int64_t j) { return h[j] * e.centre[j]; });
    batch.look.prepared.add[q] = batch.terms[lanes + q] = static_cast<float>(sum);
    batch.terms[q] = up(std::fabs(sum) * 0x1p-20) + 0x1p-100f;
    std::vector<double> x(rotated, rotated + e.rotated_dim), lost(e.rotated_dim, 0.0);
    const auto take = [&](const LanePass& pass, const Segment& seg, int8_t* row) {
        int8_t* plane = batch.planes.data() + (pass.planes - batch.planes.data()) + q * 4;
        const int64_t per = 32 / seg.bits;
        const Coded coded = int8_planes<1>(x, seg, lost, [&](int64_t j, int8_t whole, int8_t) {
            plane[j / 4 * lanes * 4 + j % 4] = whole;
            if (row != nullptr) row[j % per / 4 * seg.words + j / per * 4 + j % 4] = whole;
        });
        batch.start[pass.start - batch.start.data() + q] = -coded.offset[0];
        batch.step[pass.step - batch.step.data() + q] = coded.step;
        return coded;
    };
    for (size_t s = 0; s < batch.first.size(); ++s) take(batch.first[s], e.preview.segments[s], nullptr);
    Radius radius{};
    const auto lay = [&](const LaneRadius& to) {
        for (int r = 0; r < to.terms; ++r) batch.terms[to.term[r] - batch.terms.data() + q] = radius.term[r];
    };
    set_radius(e.preview.terms, e.preview.slack, halves_of(e.preview.terms, x, lost, std::sqrt(norm)), radius);
    lay(batch.wide);
    if (batch.further.empty()) return;
    const Deeper& from = e.deeper[0];
    DeeperQuery& query = batch.look.prepared.deeper[q];
    query.high.assign(from.halves + 64, 0);
    query.low.assign(from.halves + 64, 0);
    for (size_t s = 0; s < from.segments.size(); ++s) {  // the high half is 256 times what it is for two planes
        const Coded coded = take(batch.further[s], from.segments[s], &query.high[from.segments[s].first_quad]);
        query.step.push_back(coded.step / 256);
        query.offset.insert(query.offset.end(), {coded.offset[0], 0});
    }
    set_radius(from.terms, from.slack, halves_of(from.terms, x, lost, std::sqrt(norm)), radius);
    lay(batch.closer_radius);
    query.radius = radius;
    query.radius.constant = batch.terms[q];
}

}  // namespace

// Where the numbers of one level of all queries lie, one query in each lane.
void prepare_batch(const Executor& e, BatchState& batch) {
    Look& look = batch.look;
    const int n = batch.n, lanes = batch.lanes;
    const size_t closer = e.deeper.empty() ? 0 : e.deeper[0].segments.size(), passes = e.preview.segments.size() + closer;
    int64_t quads = 0;
    for (const Segment& seg : e.preview.segments) quads += seg.words * 8 / seg.bits;
    for (size_t s = 0; s < closer; ++s) quads += e.deeper[0].segments[s].words / 4 * 8 / e.deeper[0].segments[s].bits;
    batch.planes.resize(quads * lanes * 4);
    batch.start.resize(passes * lanes);
    batch.step.resize(passes * lanes);
    std::fill_n(batch.planes.data(), batch.planes.size(), int8_t{0});
    std::fill_n(batch.start.data(), batch.start.size(), 0);
    std::fill_n(batch.step.data(), batch.step.size(), 0.f);
    int8_t* planes = batch.planes.data();
    const auto add = [&](std::vector<LanePass>& to, int64_t at, int64_t words, int bits, const float* scale) {
        const size_t p = batch.first.size() + batch.further.size();
        to.push_back({at, words, bits, planes, batch.start.data() + p * lanes, batch.step.data() + p * lanes, scale});
        planes += words * 8 / bits * lanes * 4;
    };
    for (size_t s = 0; s < e.preview.segments.size(); ++s)
        add(batch.first, e.preview.segments[s].first_word * 256, e.preview.segments[s].words, e.preview.segments[s].bits, e.preview.scale + s * e.padded);
    for (size_t s = 0; s < closer; ++s)
        add(batch.further, e.deeper[0].segments[s].first_word, e.deeper[0].segments[s].words / 4, e.deeper[0].segments[s].bits, e.deeper[0].scale + s * e.padded);
    const size_t wide = e.preview.slack.size(), narrow = closer == 0 ? 0 : e.deeper[0].slack.size();
    batch.terms.resize((wide + narrow + 3) * lanes);  // and a constant, what is added to estimates, zeros
    std::fill_n(batch.terms.data(), batch.terms.size(), 0.f);
    const auto lay = [&](LaneRadius& radius, const std::vector<Slack>& slack, size_t first) {
        radius.terms = static_cast<int>(slack.size());
        radius.constant = batch.terms.data();
        for (size_t r = 0; r < slack.size(); ++r) {
            radius.slack[r] = slack[r];
            radius.term[r] = batch.terms.data() + (first + r) * lanes;
        }
    };
    lay(batch.wide, e.preview.slack, 2);
    if (closer > 0) lay(batch.closer_radius, e.deeper[0].slack, 2 + wide);
    look.prepared.n = n;
    look.prepared.add.assign(n, 0.f);
    look.prepared.deeper.resize(n * e.deeper.size());
    const std::vector<double> rotated = rotate_queries(e, e.preview, look);
    Turns<int> next;
    run_parallel(std::min(batch.threads, n), [&](int) {
        for (int q = next++; q < n; q = next++) prepare_in_lane(e, batch, q, rotated.data() + q * e.rotated_dim);
    });
}


}  // namespace headlong
