// Bounds where float32 flushes, saturates or rounds, from both sides, beside sums in long double.
//
//   exponentials   0 below -87 and exp(88) above: a mass is never below its floor, an end beyond exp(87) is infinite
//   squares        flushed below 2^-126: radii are scaled before they are squared
//   noise          the largest of a word; a class at -inf has none
//
// What is 0 in float32 widens a bound: no end may lie within what the numbers it stands for can reach.
#include <algorithm>
#include <cmath>
#include <limits>

#include "codes/draw_points.h"
#include "native/cases.h"

namespace headlong {
namespace {

using Long = long double;
constexpr float kNever = std::numeric_limits<float>::infinity(), kLeast = std::numeric_limits<float>::denorm_min();

template <typename T, int N>
T one_of(Noise& noise, const T (&values)[N]) { return values[noise.below(N)]; }

// Numbers at the edges among others.
float edge_number(Noise& noise, float size) {
    constexpr float edges[] = {0.f, -0.f, kLeast, -kLeast, 0x1p-126f, 1.f, -1.f, 86.9f, -86.9f, 87.1f, -87.1f, 88.f, -88.f, 1e4f, -1e4f, 1e29f, -1e29f};
    return noise.below(3) == 0 ? one_of(noise, edges) : noise.uniform(-size, size);
}

float edge_radius(Noise& noise, float size) {
    constexpr float edges[] = {0.f, kLeast, 0x1p-126f, 1e-20f, 39.f, 41.f, 59.f, 61.f, 79.f, 81.f, 200.f, 1e29f};
    return noise.below(3) == 0 ? one_of(noise, edges) : noise.uniform(0, size);
}

Long linked_long(const Link& link, Long z) { return link.form == LinkForm::softcap ? link.a * std::tanh(z / static_cast<Long>(link.a)) : link.a * z + link.b; }

Link edge_link(Noise& noise) {
    const bool cap = noise.below(3) == 0;
    return {cap ? LinkForm::softcap : LinkForm::affine, cap ? noise.uniform(5, 50) : noise.uniform(0.25f, 4), cap ? 1.f : noise.uniform(-1, 1)};
}

struct Around {
    std::vector<float> est, rad;
    float top = -kNever, most = 0;
};
Around around(Noise& noise, int64_t n, float size) {
    Around out{std::vector<float>(n), std::vector<float>(n)};
    for (int64_t i = 0; i < n; ++i) {
        out.est[i] = noise.below(9) == 0 ? -kNever : std::max(-1e29f, edge_number(noise, size));
        out.rad[i] = edge_radius(noise, size / 4);
        if (out.est[i] > 1e3f) out.est[i] = 1e3f;
        out.top = std::max(out.top, out.est[i]), out.most = std::max(out.most, out.rad[i]);
    }
    return out;
}

// low <= sum exp(f(est - rad)), sum exp(f(est + rad)) <= high, but for what sums in float32 round.
void interval_edges(Check& check) {
    Noise& noise = check.noise();
    const Around c = around(noise, 64 * (1 + noise.below(4)), one_of(noise, {1.f, 30.f, 300.f}));
    if (c.top == -kNever) return;
    const Link link = edge_link(noise);
    const float beta = one_of(noise, {1.f, 0.01f, 3.f}), shift = static_cast<float>(linked_long(link, c.top) * beta);
    Kernels::Sums sums{0, 0, 0};
    check.kernels().interval_sums(c.est.data(), c.rad.data(), static_cast<int64_t>(c.est.size()), c.most, link, beta, shift, &sums);
    Long low = 0, high = 0, largest = 0;
    for (size_t i = 0; i < c.est.size(); ++i) {
        if (c.est[i] == -kNever) continue;
        low += std::exp(linked_long(link, static_cast<Long>(c.est[i]) - c.rad[i]) * beta - shift);
        high += std::exp(linked_long(link, static_cast<Long>(c.est[i]) + c.rad[i]) * beta - shift);
        largest = std::max(largest, std::fabs(static_cast<Long>(shift)) + 64);
    }
    // what float_error and kSumError of csrc/executor allow, and V exp(-87) that was flushed
    const Long off = std::exp(largest * 0x1p-20L + (link.form == LinkForm::softcap ? static_cast<Long>(link.a) * beta * 0x1p-19L : 0) + 0x1p-16L), flushed = 512 * std::exp(-47.L);
    check.note("interval_sums, low", sums.low <= static_cast<double>(low * off + flushed), {});
    check.note("interval_sums, high", std::isinf(sums.high) || static_cast<Long>(sums.high) * off + flushed >= high, {});
}

// No key of an interval's end is above its upper end.
void key_edges(Check& check) {
    Noise& noise = check.noise();
    const Around c = around(noise, 64, one_of(noise, {1.f, 1e4f}));
    const Link link = edge_link(noise);
    const float beta = one_of(noise, {1.f, 1e-3f, 1e3f});
    std::vector<uint32_t> words(64);
    for (uint32_t& word : words) word = noise.below(4) == 0 ? one_of(noise, {0u, 1u, 0x7FFFFFFFu, 0xFFFFFFFFu}) : static_cast<uint32_t>(noise.next());
    std::vector<float> upper(64);
    const float most = check.kernels().gumbel_keys(c.est.data(), c.rad.data(), words.data(), 64, link, beta, upper.data());
    bool good = true;
    for (int64_t i = 0; i < 64; ++i) {
        if (c.est[i] == -kNever) {
            good &= upper[i] == -kNever;
            continue;
        }
        const Long gap = (static_cast<Long>(~words[i]) * 0x1p32L + 0.5L) * 0x1p-64L, noise_of = -std::log(-std::log1p(-std::min(gap, 1 - 0x1p-63L)));
        const Long key = linked_long(link, static_cast<Long>(c.est[i]) + c.rad[i]) * beta + noise_of;
        good &= upper[i] >= key - std::fabs(key) * 1e-7L && upper[i] <= most;
    }
    check.note("gumbel_keys", good, {});
}

// A tile's radii, whatever the sizes of its numbers and the query's; and masses within what these say, at the floor and below it.
void scan_edges(Check& check, const ScanKernels& scan) {
    Noise& noise = check.noise();
    TileLayout layout;
    const int bits[] = {4, 2}, segments = 2;
    const int64_t coordinates[] = {32, 32};
    layout.set(segments, bits, coordinates);
    std::vector<uint8_t> tile(layout.bytes);
    auto* numbers = reinterpret_cast<float*>(tile.data() + layout.largest);
    const float size = one_of(noise, {0x1p-40f, 1.f, 0x1p39f});
    for (int i = 0; i < 2 * segments; ++i) numbers[i] = noise.below(5) == 0 ? 0.f : size * std::exp2(noise.uniform(-30, 0));
    ScanRadii all;
    all.squared = noise.below(2) == 0;
    all.unit = 1 / size;
    Long norm[2], step[2];
    const float own = one_of(noise, {0x1p-38f, 1.f, 0x1p38f});
    for (int s = 0; s < segments; ++s) {
        norm[s] = noise.below(5) == 0 ? 0 : std::exp2(static_cast<Long>(noise.uniform(-30, 0)));
        step[s] = noise.below(5) == 0 ? 0 : std::exp2(static_cast<Long>(noise.uniform(-30, 0)));
        all.error[s][0] = static_cast<float>((all.squared ? norm[s] * norm[s] : norm[s]) * (1 + 0x1p-18L));
        all.scale[s][0] = static_cast<float>((all.squared ? step[s] * step[s] : step[s]) * (1 + 0x1p-18L));
    }
    all.back[0] = own * size;
    all.constant[0] = 0x1p-100f;
    Long right = 0;
    for (int s = 0; s < segments; ++s) {
        const Long error = norm[s] * own * numbers[2 * s], loss = step[s] * own * numbers[2 * s + 1];
        right += all.squared ? error * error + loss * loss : error + loss;
    }
    if (all.squared) right = std::sqrt(right);
    alignas(64) float radii[kMostLanes], part[kMostLanes], bend[kMostLanes];
    const float beta = std::min(1e30f, one_of(noise, {0.01f, 1.f, 20.f, 70.f}) / std::max(1e-30f, static_cast<float>(right)));
    scan.radii(tile.data(), layout, all, beta, radii, part, bend);
    check.note("radii, no less", radii[0] + static_cast<Long>(all.constant[0]) >= right && radii[0] <= right * 1.01L + static_cast<Long>(own) * size * 0x1p-50L, {});
    alignas(64) float est[kTile], shares[kTile], mass[kTile], shared[kTile];
    float sums[2];
    for (int i = 0; i < kTile; ++i) {
        est[i] = noise.below(8) == 0 ? one_of(noise, {-83.9f, -84.1f, -87.5f, -1e4f, 0.f, 1.f}) : noise.uniform(-200, 1);
        shares[i] = noise.uniform(kLeastShare, 1);
    }
    const uint64_t keep = noise.below(2) == 0 ? ~uint64_t{0} : noise.next();
    const uint64_t above = scan.masses(est, shares, 1.f, 0.f, bend[0], keep, mass, shared, sums);
    bool good = true;
    for (int i = 0; i < kTile; ++i) {
        const bool there = (keep >> i & 1) != 0, head = est[i] >= 0;
        good &= (above >> i & 1) == (there && head);
        if (!there || head) {
            good &= mass[i] == 0 && shared[i] == 0;
            continue;
        }
        good &= mass[i] > 0 && shared[i] > 0;
        if (std::isinf(part[0])) continue;
        const Long moves = static_cast<Long>(beta) * (static_cast<Long>(shares[i]) * radii[0] + all.constant[0]), gap = static_cast<Long>(shared[i]) * part[0];
        const Long high = std::exp(est[i] + moves), low = std::exp(est[i] - moves);
        good &= high - mass[i] <= gap * (1 + 1e-5L) && mass[i] - low <= gap * (1 + 1e-5L) + 1.1L * std::exp(static_cast<Long>(kFloor));
    }
    check.note("masses within their gaps", good, {});
    check.note("an exponent that is too large says nothing", static_cast<Long>(beta) * right < kMostExponent - 1 || std::isinf(part[0]), {});
}

void sum_edges(Check& check) {
    Noise& noise = check.noise();
    std::vector<double> f(1 + noise.below(70));
    Long right = 0;
    for (double& v : f) {
        v = noise.below(4) == 0 ? one_of(noise, {0.0, -0.0, -699.9, -700.1, -1e300, -std::numeric_limits<double>::infinity(), -5e-324}) : noise.uniform(-40, 0);
        right += std::exp(static_cast<Long>(v));
    }
    const double sum = check.kernels().sum_exps(f.data(), static_cast<int64_t>(f.size()), 0.0);
    check.note("sum_exps", std::fabs(static_cast<Long>(sum) - right) <= right * 0x1p-46L + 1e-300L, {});
}

// Of bets on one query's nucleus no two look at one stream, in whatever round they are made and whatever class they are about; and rounds with
// halves of a promise each, and the bets in them, spend less than it.
void bet_streams(Check& check) {
    const uint64_t query = check.noise().next();
    const int64_t id = check.noise().below(3);
    std::vector<uint64_t> keys;
    double spent = 0;
    for (int round = 0; round < 8; ++round)
        for (int n = 0; n < 40; ++n) {
            const NucleusBet bet(query, std::ldexp(1e-6, -1 - round), n, id + check.noise().below(2));
            keys.push_back(bet.key), spent += bet.delta;
        }
    std::sort(keys.begin(), keys.end());
    check.note("every bet has a stream of its own", std::adjacent_find(keys.begin(), keys.end()) == keys.end(), {});
    check.note("bets spend no more than is promised", spent < 1e-6, {});
}

}  // namespace

void edges(Check& check, const ScanKernels& scan) {
    for (int i = 0; i < 40; ++i) {
        interval_edges(check);
        key_edges(check);
        scan_edges(check, scan);
        sum_edges(check);
        bet_streams(check);
    }
}

}  // namespace headlong
