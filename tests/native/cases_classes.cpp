// What follows a scan: radii, intervals, candidates, noise, and losses of a row of logits.
#include <algorithm>
#include <cmath>
#include <limits>

#include "native/cases.h"

namespace headlong {

namespace {

constexpr float kNever = std::numeric_limits<float>::infinity();

// A link with whatever it borrows.
struct Linked {
    Link link;
    std::vector<float> table;
};

Linked some_link(Noise& noise) {
    Linked out;
    out.link.form = static_cast<LinkForm>(noise.below(3));
    out.link.a = noise.uniform(0.25f, 4);
    out.link.b = out.link.form == LinkForm::softcap ? 1 : noise.uniform(-1, 1);
    out.link.slop = 1e-6f;
    if (out.link.form == LinkForm::softcap) out.link.a *= 10;
    if (out.link.form == LinkForm::table) {
        const int cells = 2 + static_cast<int>(noise.below(20));
        out.table = noise.floats(2 * (cells + 2), 0.1f, out.link.a);
        out.link.table = out.table.data();
        out.link.start = -4;
        out.link.step = 0.5f;
        out.link.inverse = 2;
        out.link.cells = static_cast<float>(cells);
    }
    return out;
}

struct Classes {
    int64_t n;
    std::vector<float> est, rad;
};

Classes some_classes(Noise& noise, bool absent) {
    Classes out{64 * (1 + noise.below(12)), {}, {}};
    const float far = noise.below(4) == 0 ? 60.f : 8.f;
    out.est = noise.floats(out.n, -far, far);
    out.rad = noise.floats(out.n, 0, noise.below(4) == 0 ? 12.f : 0.2f);
    for (int64_t i = 0; absent && i < out.n; ++i)
        if (noise.below(16) == 0) out.est[i] = -kNever;
    return out;
}

void intervals(Check& check) {
    Noise& noise = check.noise();
    const Classes c = some_classes(noise, true);
    const Linked linked = some_link(noise);
    const Link& link = linked.link;
    const float beta = noise.uniform(0.5f, 2), shift = noise.uniform(0, 20);
    float most = 0;
    for (const float r : c.rad) most = r > most ? r : most;
    check.same("interval_sums", [&](const Kernels& k, std::vector<uint8_t>& out) {
        Kernels::Sums sums{1, 2, 3};
        k.interval_sums(c.est.data(), c.rad.data(), c.n, most, link, beta, shift, &sums);
        put(out, sums.low), put(out, sums.high), put(out, sums.centre);
    });
    const uint64_t seed = noise.next(), row = noise.next();
    const int64_t first = 4 * noise.below(1000);
    std::vector<uint32_t> words(c.n);
    check.exact("noise", [&](const Kernels& k, std::vector<uint8_t>& out) {
        k.noise(seed, row, 3, first, c.n, words.data());
        put(out, words);
    });
    if (noise.below(2) == 0) words[0] = 0, words[1] = 0xFFFFFFFF;
    check.same("gumbel_keys", [&](const Kernels& k, std::vector<uint8_t>& out) {
        std::vector<float> upper(c.n);
        put(out, k.gumbel_keys(c.est.data(), c.rad.data(), words.data(), c.n, link, beta, upper.data()));
        put(out, upper);
    });
    // The largest noise of a word is that of the low word 2^32 - 1: its distance from one is that of both words inverted.
    std::vector<float> zero(c.n), upper(c.n);
    check.kernels().gumbel_keys(zero.data(), zero.data(), words.data(), c.n, Link{LinkForm::affine, 1, 0}, 1, upper.data());
    bool right = true;
    for (int64_t i = 0; i < c.n; ++i) {
        const double gap = (static_cast<double>(~words[i]) * 0x1p32 + 0.5) * 0x1p-64, most = -std::log(-std::log1p(-std::min(gap, 1 - 0x1p-53)));
        const bool usual = words[i] > 0xFFFFFFFFu / 10 && words[i] < 0xFFFFFFFFu - (1u << 12);
        right &= upper[i] >= most && (!usual || upper[i] - most < 0.25);
    }
    check.note("gumbel_keys above all noise", right, {});
}

void choices(Check& check) {
    Noise& noise = check.noise();
    Classes c = some_classes(noise, true);
    const float edge = noise.uniform(-8, 8);
    check.exact("candidates", [&](const Kernels& k, std::vector<uint8_t>& out) {
        std::vector<int32_t> ids(c.n);
        std::vector<float> kept(c.n), upper(c.n);
        const int64_t count = k.candidates(c.est.data(), c.rad.data(), c.n, edge, 640, ids.data(), kept.data(), upper.data());
        put(out, count);
        put(out, ids.data(), count), put(out, kept.data(), count), put(out, upper.data(), count);
    });
    check.exact("lower_above", [&](const Kernels& k, std::vector<uint8_t>& out) {
        std::vector<float> low(c.n);
        const int64_t count = k.lower_above(c.est.data(), c.rad.data(), c.n, edge, low.data());
        put(out, low.data(), count);
    });
    const std::vector<float> weights = noise.floats(c.n, 0, 1);
    if (noise.below(4) == 0) c.est[noise.below(c.n)] = std::numeric_limits<float>::quiet_NaN();
    if (noise.below(4) == 0) c.est[noise.below(c.n)] = kNever;
    const auto mask = noise.bytes<uint8_t>(c.n, 0, 2);
    check.same("largest", [&](const Kernels& k, std::vector<uint8_t>& out) {
        bool finite = true, there = true;
        std::vector<float> masked = c.est;
        put(out, k.largest(masked.data(), nullptr, c.n, &finite));
        put(out, k.largest(masked.data(), mask.data(), c.n, &there));
        put(out, masked);
        put(out, finite), put(out, there);
    });
    const std::vector<float> fixed = noise.floats(c.n, 0, 1);
    const float term = noise.uniform(0, 1);
    const bool alone = noise.below(2) == 0;
    check.same("radius", [&](const Kernels& k, std::vector<uint8_t>& out) {
        std::vector<float> rad(c.n);
        put(out, k.radius(weights.data(), alone ? nullptr : fixed.data(), term, c.n, rad.data()));
        put(out, rad);
    });
    const int64_t some = 1 + noise.below(70);
    std::vector<double> f(some);
    for (double& v : f) v = noise.uniform(-800, 0);
    check.same("sum_exps", [&](const Kernels& k, std::vector<uint8_t>& out) { put(out, k.sum_exps(f.data(), some, 0.5)); });
}

void losses(Check& check) {
    Noise& noise = check.noise();
    const int64_t n = 1 + noise.below(700), target = noise.below(n);
    const std::vector<float> z = noise.floats(n, -9, 9);
    Linked linked = some_link(noise);
    if (noise.below(4) == 0) linked.link.form = LinkForm::gss, linked.link.b = 2;
    const Link& link = linked.link;
    check.same("link_lse", [&](const Kernels& k, std::vector<uint8_t>& out) {
        const double lse = k.link_lse(z.data(), n, link);
        put(out, lse);
        put(out, k.link_at(z[0], link));
        std::vector<float> gradient = z;
        std::vector<double> first(64, 0.0), second(64, 0.0);
        double* sums[2] = {first.data(), second.data()};
        k.link_gradient(gradient.data(), n, link, lse, target, 0.5f, sums);
        put(out, gradient);
        put(out, first), put(out, second);
    });
}

}  // namespace

void classes(Check& check) {
    for (int i = 0; i < 4; ++i) {
        intervals(check);
        choices(check);
        losses(check);
    }
}

}  // namespace headlong
