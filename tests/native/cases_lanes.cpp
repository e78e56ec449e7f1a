// Queries side by side, one in each lane.
#include "native/cases.h"

namespace headlong {

namespace {

struct Crowded {
    int lanes, n;
    int64_t count;  // classes that are looked at, of 64
    std::vector<int32_t> ids, place;
    bool listed;
};

Crowded some_crowd(Noise& noise) {
    const int sizes[] = {8, 16, 32, 48, 64};
    Crowded out;
    out.lanes = sizes[noise.below(5)];
    out.n = out.lanes - static_cast<int>(noise.below(out.lanes > 8 ? 15 : 7));
    out.listed = noise.below(2) == 0;
    out.count = out.listed ? 1 + noise.below(20) : 64;
    for (int64_t r = 0; r < out.count; ++r) {
        out.ids.push_back(static_cast<int32_t>(noise.below(64)));
        out.place.push_back(static_cast<int32_t>(r));
    }
    return out;
}

void scanned(Check& check) {
    Noise& noise = check.noise();
    const Crowded crowd = some_crowd(noise);
    const int lanes = crowd.lanes, passes = 1 + static_cast<int>(noise.below(2));
    std::vector<LanePass> every;
    std::vector<std::vector<int8_t>> planes;
    std::vector<std::vector<int32_t>> starts;
    std::vector<std::vector<float>> steps, scales;
    int64_t at = 0;
    for (int p = 0; p < passes; ++p) {
        const int bits = 1 << noise.below(4);
        const int64_t words = 1 + noise.below(12), quads = words * 8 / bits;
        planes.push_back(noise.bytes<int8_t>(quads * lanes * 4, -127, 127));
        starts.emplace_back(lanes, 0);
        for (int64_t j = 0; j < quads; ++j)
            for (int q = 0; q < lanes; ++q)
                for (int i = 0; i < 4; ++i)
                    starts[p][q] -= (bits == 8 ? 128 : (1 << bits) - 1) * planes[p][(j * lanes + q) * 4 + i];
        steps.push_back(noise.floats(lanes, 0, 1e-3f));
        scales.push_back(noise.floats(64, 0, 0.1f));
        every.push_back({at, words, bits, planes[p].data(), starts[p].data(), steps[p].data(), scales[p].data()});
        at += words * (crowd.listed ? 4 : 256);
    }
    const auto codes = noise.bytes<uint8_t>(crowd.listed ? 64 * at : at, 0, 255);
    const LaneRows rows{codes.data(), at, 0, crowd.count, crowd.listed ? crowd.ids.data() : nullptr, crowd.listed ? crowd.place.data() : nullptr};
    const std::vector<float> base = noise.floats(64, -4, 4), add = noise.floats(lanes, -1, 1), before = noise.floats(crowd.count * lanes, -9, 9);
    const bool fresh = noise.below(2) == 0;
    check.same("batch_scan", [&](const Kernels& k, std::vector<uint8_t>& out) {
        std::vector<float> est = before;
        k.batch_scan(rows, every.data(), passes, fresh ? base.data() : nullptr, fresh ? add.data() : nullptr, lanes, est.data());
        put(out, est);
    });
    const std::vector<float> one(64, 1.f), none(64, 0.f);
    every[0].step = every[0].scale = one.data();
    check.exact("batch_scan of whole numbers", [&](const Kernels& k, std::vector<uint8_t>& out) {
        std::vector<float> est(crowd.count * lanes);
        k.batch_scan(rows, every.data(), 1, none.data(), none.data(), lanes, est.data());
        put(out, est);
    });
}

void weighed(Check& check) {
    Noise& noise = check.noise();
    const Crowded crowd = some_crowd(noise);
    const int lanes = crowd.lanes;
    const std::vector<float> est = noise.floats(crowd.count * lanes, -6, 6), octaves = noise.floats(lanes, 0, 12), tau = noise.floats(lanes, 3, 9);
    const std::vector<float> edge = noise.floats(lanes, 0.01f, 4), worth = noise.floats(lanes, 0, 0.5f), theta = noise.floats(lanes, 0.05f, 2);
    const std::vector<float> left = noise.floats(lanes, 0, 1), constant = noise.floats(lanes, 0, 0.1f), term = noise.floats(lanes, 0, 1);
    const std::vector<float> slack = noise.floats(64, 0, 0.5f);
    LaneLook look{};
    look.n = crowd.n, look.lanes = lanes, look.bet = noise.below(2) == 0;
    look.link = Link{LinkForm::affine, noise.uniform(0.5f, 2), 0};
    look.beta = noise.uniform(0.5f, 2), look.slop = 0x1p-12f, look.rival = 0.1f, look.limit = noise.uniform(0.2f, 2);
    look.octaves = octaves.data(), look.tau = tau.data(), look.edge = edge.data(), look.worth = worth.data(), look.theta = theta.data();
    LaneRadius radius{};
    radius.terms = 1, radius.slack[0] = {slack.data()}, radius.term[0] = term.data(), radius.constant = constant.data();
    const LaneRows rows{nullptr, 0, 0, crowd.count, crowd.listed ? crowd.ids.data() : nullptr, crowd.listed ? crowd.place.data() : nullptr};
    const bool choosy = noise.below(2) == 0;
    const uint64_t seed = noise.next();
    check.same("batch_weigh", [&](const Kernels& k, std::vector<uint8_t>& out) {
        std::vector<double> middle(lanes, 0.0), gap(lanes, 0.0), moved(lanes, 0.0);
        std::vector<float> still = left;
        std::vector<uint64_t> keys(lanes);
        for (int q = 0; q < lanes; ++q) keys[q] = seed + q;
        std::vector<LaneHit> hits(lanes * crowd.count + 1);
        std::vector<int32_t> further(crowd.count), place(crowd.count);
        LaneState state{middle.data(), gap.data(), moved.data(), still.data(), keys.data(), hits.data(), 0,
                        choosy ? further.data() : nullptr, choosy ? place.data() : nullptr, 0};
        k.batch_weigh(look, radius, rows, est.data(), state);
        put(out, middle), put(out, gap), put(out, moved), put(out, still), put(out, keys);
        put(out, state.hit_count), put(out, hits.data(), state.hit_count);
        put(out, further.data(), state.further_count), put(out, place.data(), state.further_count);
    });
    check.same("batch_sums", [&](const Kernels& k, std::vector<uint8_t>& out) {
        std::vector<float> largest((crowd.count + kLaneRun - 1) / kLaneRun * lanes);
        std::vector<double> sums(lanes, 0.0);
        k.batch_largest(est.data(), crowd.count, lanes, largest.data());
        k.batch_sums(look, est.data(), crowd.count, lanes, sums.data());
        put(out, largest), put(out, sums);
    });
}

}  // namespace

void lanes(Check& check) {
    for (int i = 0; i < 6; ++i) {
        scanned(check);
        weighed(check);
    }
}

}  // namespace headlong
