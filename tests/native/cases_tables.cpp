// What a level has besides its kernels: the looks of blocks, the scan of codes.
#include <cmath>
#include <cstring>

#include "blocks/looks.h"
#include "native/cases.h"
#include "scan/tiles.h"

namespace headlong {

namespace {

// ---- looks of sixteen neighbours and of one class ----

std::vector<uint8_t> record_of(Noise& noise, int64_t bytes, int64_t floats) {
    std::vector<uint8_t> out = noise.bytes<uint8_t>(bytes, 0, 255);
    put(out, noise.floats(floats, -0.1f, 0.1f));
    return out;
}

void looked(Check& check) {
    Noise& noise = check.noise();
    const int64_t count = noise.below(70), tails = 1 + noise.below(kMostTails);
    const std::vector<float> x = noise.floats(count + 1, -1, 1), lengths = noise.floats(tails, 0, 1);
    const LookQuery query{x.data(), lengths.data(), noise.uniform(-1, 1), 0x1p-10f};
    const float tau = noise.uniform(-4, 4);
    const auto block = record_of(noise, (count + tails) * kNeighbours, 3 * kNeighbours), one = record_of(noise, count + tails, 2);
    const int64_t n = kNeighbours * (1 + noise.below(9)), rows = noise.below(40);
    const auto codes = noise.bytes<int8_t>(rows * n, -127, 127);
    const std::vector<float> by_row = noise.floats(rows + 1, -1, 1);
    check.same("looks", [&](const Level& level, std::vector<uint8_t>& out) {
        const Looks& looks = *level.looks;
        float est[kNeighbours], upper[kNeighbours], closer = 0.5f;
        const auto written = [&] { put(out, est, kNeighbours), put(out, upper, kNeighbours); };
        put(out, looks.sixteen(block.data(), {count, tails}, query, tau, est, upper)), written();
        put(out, looks.closer(one.data(), {count, tails}, query, &closer)), put(out, closer);
        std::vector<float> spread(n);
        looks.spread(codes.data(), rows, n, by_row.data(), spread.data());
        put(out, spread);
    });
}

// Which numbers reach another, and the classes of blocks that are opened: numbers are few and often equal, or none.
void listed(Check& check) {
    Noise& noise = check.noise();
    const int64_t n = kNeighbours * (1 + noise.below(9)), wanted = noise.below(kNeighbours + 1), most = 1 + noise.below(40);
    std::vector<float> values = noise.floats(n, -4, 4);
    const float step = noise.below(2) == 0 ? 0.25f : 1e-3f, tau = noise.uniform(-4, 4);
    for (float& v : values) v = noise.below(16) == 0 ? -INFINITY : std::floor(v / step) * step;
    const std::vector<float> est = noise.floats(kNeighbours, -4, 4), upper = noise.floats(kNeighbours, -4, 4);
    const uint32_t open = static_cast<uint32_t>(noise.below(1 << kNeighbours));
    check.exact("choices", [&](const Level& level, std::vector<uint8_t>& out) {
        const Looks& looks = *level.looks;
        std::vector<int32_t> places(n + kNeighbours);
        std::vector<float> work(n + kNeighbours), ends(2 * kNeighbours);
        put(out, places.data(), looks.listed(values.data(), n, tau, places.data()));
        put(out, places.data(), looks.largest(values.data(), n, wanted, -2.f, work.data(), places.data()));
        put(out, looks.taken(open, 48, est.data(), upper.data(), {places.data(), ends.data(), &ends[kNeighbours]}));
        put(out, places.data(), kNeighbours), put(out, ends);
    });
    const int64_t count = noise.below(40), tails = 1 + noise.below(kMostTails), groups = n / kNeighbours;
    const std::vector<float> x = noise.floats(count + 1, -1, 1), lengths = noise.floats(tails, 0, 1);
    const LookQuery query{x.data(), lengths.data(), noise.uniform(-1, 1), 0x1p-10f};
    std::vector<uint8_t> records, closer;
    std::vector<int32_t> order;
    for (int32_t g = 0; g < groups; ++g) {
        const auto more = record_of(noise, (count + tails) * kNeighbours, 3 * kNeighbours);
        records.insert(records.end(), more.begin(), more.end());
        order.push_back(g);
    }
    for (int64_t i = 0; i < n; ++i) {
        const auto more = record_of(noise, count + tails, 2);
        closer.insert(closer.end(), more.begin(), more.end());
    }
    const auto filled = noise.bytes<uint16_t>(groups, 0, 65535);
    const RecordShape one{count, tails};
    BlockList list{records.data(), one, values.data(), filled.data(), closer.data(), one.class_bytes(), order.data(), groups, groups};
    check.same("opened", [&](const Level& level, std::vector<uint8_t>& out) {
        std::vector<int32_t> places(most + 2 * kNeighbours);
        std::vector<float> middle(places.size()), top(places.size());
        const OpenClasses to{places.data(), middle.data(), top.data()};
        const BlocksOpened some = level.looks->opened(list, query, tau, most, to);
        put(out, some.passed), put(out, some.opened), put(out, some.found), put(out, middle);
        put(out, level.looks->closer_of(closer.data(), one, query, tau, to, some.found)), put(out, places), put(out, middle), put(out, top);
    });
}

// ---- the scan of rotated codes: estimates are whole numbers times scales, the same everywhere ----

}  // namespace

void estimates(Check& check) {
    Noise& noise = check.noise();
    constexpr int kBits[] = {1, 2, 3, 4, 5, 6, 8}, kSides[] = {1, 2, 4, 8};
    const int segments = 1 + static_cast<int>(noise.below(3)), lanes = kSides[noise.below(4)];
    int bits[3];
    int64_t coordinates[3];
    for (int s = 0; s < segments; ++s) bits[s] = kBits[noise.below(7)], coordinates[s] = 2 + noise.below(80);
    TileLayout layout;
    layout.set(segments, bits, coordinates);
    std::vector<uint8_t> tile = noise.bytes<uint8_t>(layout.bytes, 1, 255);
    for (int64_t at = layout.scales; at < layout.bytes; at += 4) {
        const float number = noise.floats(1, -2, 2)[0];
        std::memcpy(&tile[at], &number, 4);
    }
    std::vector<std::vector<int8_t>> x;
    std::vector<int32_t> sums;
    std::vector<float> steps = noise.floats(segments * lanes, 0, 1);
    for (int s = 0; s < segments; ++s) {
        x.push_back(noise.bytes<int8_t>(layout.segment[s].groups * 32 * lanes, -127, 127));
        for (int q = 0; q < lanes; ++q) {
            int32_t sum = 0;
            for (int64_t quad = 0; quad < layout.segment[s].groups * 8; ++quad)
                for (int i = 0; i < 4; ++i) sum += x[s][(quad * lanes + q) * 4 + i];
            sums.push_back(sum);
        }
    }
    std::vector<ScanPass> passes;
    for (int s = 0; s < segments; ++s) passes.push_back({s, x[s].data(), &sums[s * lanes], &steps[s * lanes]});
    check.exact("estimate", [&](const Level& level, std::vector<uint8_t>& out) {
        std::vector<float> est(lanes * kTile);
        level.scan->estimate(tile.data(), layout, passes.data(), segments, lanes, 0, est.data());
        put(out, est);
    });
}

void tables(Check& check) {
    for (int i = 0; i < 4; ++i) {
        estimates(check);
        looked(check);
        listed(check);
    }
}

}  // namespace headlong
