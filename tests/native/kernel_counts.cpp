// Calls each kind of kernel once between two marks, so that an emulator's log of instructions can be cut there and counted:
// tools/kernel_counts.py.
//
//   kernel_counts LEVEL
//
// The first line is the address of the mark. Then a line for each call: what ran, one of what it is counted by, how many of
// these it worked on, and the bytes of the layer that it read.
#include <cstdio>
#include <functional>

#include "blocks/looks.h"
#include "encode/task.h"
#include "native/cases.h"

extern "C" __attribute__((noinline)) void counted_mark() { __asm__ volatile("" ::: "memory"); }

namespace headlong {
namespace {

constexpr int64_t kDim = 512, kClasses = 1024;  // of a row; of what follows a scan
const char* const kKinds[] = {"float32", "float16", "bfloat16"};

void counted(const char* what, const char* each, int64_t many, int64_t bytes, const std::function<void()>& call) {
    counted_mark();
    call();
    counted_mark();
    std::printf("%s\t%s\t%lld\t%lld\n", what, each, static_cast<long long>(many), static_cast<long long>(bytes));
}

// Entries between 0.5 and 1, as they are stored.
std::vector<uint8_t> entries(Noise& noise, Kind kind, int64_t n) {
    std::vector<uint8_t> out;
    for (int64_t i = 0; i < n; ++i) {
        const float value = noise.uniform(0.5f, 1);
        uint32_t raw;
        std::memcpy(&raw, &value, 4);
        if (kind == Kind::f32) put(out, raw);
        else put(out, static_cast<uint16_t>(kind == Kind::bf16 ? raw >> 16 : 0x3800 | (raw >> 13 & 0x3FF)));
    }
    return out;
}

void codes(const Kernels& k, Noise& noise) {
    const auto block = noise.bytes<uint8_t>(kDim * kBlock, 0, 255);
    const auto planes = noise.bytes<int8_t>(kDim * 8 * 2, -127, 127);
    const std::vector<int32_t> offset(16, 5), sums(kBlock, 60000);
    const std::vector<float> step = noise.floats(8, 0, 1e-3f), scale = noise.floats(kBlock, 0, 0.1f);
    std::vector<float> est(8 * kBlock);
    for (const int bits : {8, 4, 2, 1})
        for (const int n : {1, 4}) {
            const std::string what = "scan of " + std::to_string(bits) + "-bit codes, " + (n == 1 ? "1 query" : std::to_string(n) + " queries");
            counted(what.c_str(), "class and query", kBlock * n, kDim * bits / 8 * kBlock, [&] {
                k.scan_u8(block.data(), kDim * bits / 32, bits, bits == 8 ? sums.data() : nullptr, planes.data(), offset.data(), step.data(), scale.data(),
                          scale.data(), step.data(), n, est.data(), kBlock);
            });
        }
    const int lanes = 16;
    const auto crowd = noise.bytes<int8_t>(kDim * lanes, -127, 127);
    const std::vector<int32_t> start(lanes, 7);
    const std::vector<float> by_lane = noise.floats(lanes, 0, 1e-3f);
    std::vector<float> many(kBlock * lanes);
    const LanePass pass{0, kDim / 4, 8, crowd.data(), start.data(), by_lane.data(), scale.data()};
    const LaneRows rows{block.data(), kDim, 0, kBlock, nullptr, nullptr};
    counted("scan of one 8-bit plane, 16 queries in lanes", "class and query", kBlock * lanes, kDim * kBlock,
            [&] { k.batch_scan(rows, &pass, 1, scale.data(), by_lane.data(), lanes, many.data()); });
}

void lanes(const Kernels& k, Noise& noise) {
    const int lanes = 16;
    const std::vector<float> est = noise.floats(kBlock * lanes, -6, 0), octaves(lanes, 1.f), tau(lanes, 9.f), edge(lanes, 9.f), worth(lanes, 0.f);
    const std::vector<float> theta(lanes, 1.f), left(lanes, 1.f), constant(lanes, 0.01f), slack = noise.floats(kBlock, 0, 0.1f);
    LaneLook look{};
    look.n = look.lanes = lanes, look.link = Link{LinkForm::affine, 1, 0}, look.beta = 1, look.slop = 0x1p-12f, look.limit = 2;
    look.octaves = octaves.data(), look.tau = tau.data(), look.edge = edge.data(), look.worth = worth.data(), look.theta = theta.data();
    LaneRadius radius{};
    radius.terms = 1, radius.slack[0] = {slack.data()}, radius.term[0] = constant.data(), radius.constant = constant.data();
    const LaneRows rows{nullptr, 0, 0, kBlock, nullptr, nullptr};
    std::vector<double> middle(lanes), gap(lanes), moved(lanes);
    std::vector<float> still = left;
    std::vector<uint64_t> keys(lanes);
    std::vector<LaneHit> hits(lanes * kBlock + 1);
    LaneState state{middle.data(), gap.data(), moved.data(), still.data(), keys.data(), hits.data(), 0, nullptr, nullptr, 0};
    counted("intervals of 16 queries in lanes", "class and query", kBlock * lanes, 4 * kBlock, [&] { k.batch_weigh(look, radius, rows, est.data(), state); });
}

void rows(const Kernels& k, Noise& noise) {
    constexpr int64_t kRows = 16;
    const std::vector<float> x = noise.floats(64 * kDim, -1, 1);
    const std::vector<double> wide(x.begin(), x.begin() + kDim);
    std::vector<float> out(64 * kRows), scratch(kRows * kDim);
    std::vector<double> exact(kRows);
    for (const Kind kind : {Kind::f32, Kind::f16, Kind::bf16}) {
        const auto stored = entries(noise, kind, kRows * kDim);
        const auto bytes = static_cast<int64_t>(stored.size());
        const std::string name = std::string(kKinds[static_cast<int>(kind)]) + " rows, ";
        for (const int n : {1, 8})
            counted((name + (n == 1 ? "1 query" : "8 queries")).c_str(), "class and query", kRows * n, bytes,
                    [&] { k.dense_rows(stored.data(), kind, kDim, kRows, x.data(), n, out.data(), kRows); });
        counted((name + "64 queries").c_str(), "class and query", kRows * 64, bytes,
                [&] { k.dense_tile(stored.data(), kind, kDim, kRows, x.data(), 64, scratch.data(), out.data()); });
        counted((name + "in float64").c_str(), "class and query", kRows, bytes,
                [&] { k.dot_rows(stored.data(), kind, kDim, nullptr, kRows, wide.data(), exact.data()); });
    }
}

void classes(const Kernels& k, Noise& noise) {
    const std::vector<float> est = noise.floats(kClasses, -8, 0), rad = noise.floats(kClasses, 0, 0.2f);
    std::vector<float> one(kClasses), two(kClasses);
    std::vector<int32_t> ids(kClasses);
    std::vector<uint32_t> words(kClasses);
    std::vector<double> sums(kClasses / kRun);
    const Link link{LinkForm::affine, 1, 0};
    const auto count = [&](const char* what, int64_t bytes, const std::function<void()>& call) { counted(what, "class", kClasses, bytes * kClasses, call); };
    Radius radius{};
    radius.terms = 1, radius.term[0] = 0.5f, radius.slack[0] = {rad.data()};
    Kernels::Sums both{};
    bool finite = true;
    int64_t taken = 0;
    count("radii", 4, [&] { k.radius(radius, 0, kClasses, one.data()); });
    count("largest estimate", 0, [&] { k.largest(est.data(), kClasses, &finite); });
    count("survivors of a threshold", 0, [&] { k.survivors(est.data(), rad.data(), kClasses, -0.1f, 0, ids.data(), one.data(), two.data()); });
    count("sums of both ends' exponentials", 0, [&] { k.interval_sums(est.data(), rad.data(), kClasses, 0.2f, link, 1, 0, &both, 0, nullptr); });
    count("both ends' exponentials", 0, [&] { k.interval_exps(est.data(), rad.data(), kClasses, link, 1, 0, one.data(), two.data()); });
    count("middles and gaps", 0, [&] { k.gaps(est.data(), rad.data(), kClasses, link, 1, 0, 0x1p-10f, one.data(), two.data()); });
    count("sums of runs of 16", 0, [&] { k.split(one.data(), kClasses, 9.f, 0, ids.data(), sums.data()); });
    std::vector<float> changed = rad;
    const Kernels::Drawn drawn{link, 1, 0, 0.5f, 9.f};
    count("middles, gaps and sums that are drawn from", 0, [&] { k.drawn(drawn, est.data(), changed.data(), kClasses, 0, ids.data(), two.data(), &taken, sums.data()); });
    count("Philox noise", 0, [&] { k.noise(7, 3, 1, 0, kClasses, words.data()); });
    count("Gumbel keys", 0, [&] { k.gumbel_keys(est.data(), rad.data(), words.data(), kClasses, link, 1, one.data()); });
    count("log-sum-exp of a loss", 0, [&] { k.link_lse(est.data(), kClasses, link); });
}

void encoder(const EncodeKernels& e, const Kernels& k, Noise& noise) {
    constexpr int64_t kColumnsHere = 96;  // whole panels of every level
    const auto row = entries(noise, Kind::f32, kDim);
    std::vector<double> centre(kDim, 0.25), mean(kDim, 0.5);
    std::vector<float> values(kDim), work(kDim), out(kBlock * kColumnsHere);
    std::vector<uint8_t> code(kDim);
    float facts[4];
    double base, square;
    const auto count = [&](const char* what, const std::function<void()>& call) { counted(what, "entry", kDim, 4 * kDim, call); };
    count("a row to int8", [&] { k.encode_row(row.data(), Kind::f32, kDim, code.data(), facts, facts + 1, facts + 2, facts + 3); });
    count("a row less its centre", [&] { e.narrow(row.data(), Kind::f32, centre.data(), mean.data(), kDim, values.data(), &base, &square); });
    for (const int bits : {8, 4, 2, 1})
        count(("a plane of " + std::to_string(bits) + " bits").c_str(),
              [&] { e.plane(values.data(), kDim, bits, bits == 8 ? Step::absmax : Step::gaussian, 1, work.data(), code.data(), facts, facts + 1); });
    const std::vector<float> rows = noise.floats(kBlock * kDim, -1, 1), panel = noise.floats(kDim * kColumnsHere, -1, 1);
    counted("rotation of 64 rows", "entry and column", kBlock * kDim * kColumnsHere, 4 * kBlock * kDim,
            [&] { e.rotate(rows.data(), kDim, kDim, panel.data(), kColumnsHere, out.data(), kColumnsHere); });
}

void looks(const Looks& l, Noise& noise) {
    constexpr int64_t kCount = 64, kTails = 4;
    auto record = noise.bytes<uint8_t>((kCount + kTails) * kNeighbours, 0, 255);
    put(record, noise.floats(3 * kNeighbours, 0, 0.1f));
    const std::vector<float> x = noise.floats(kCount, -1, 1), lengths = noise.floats(kTails, 0, 1);
    float est[kNeighbours], upper[kNeighbours];
    const LookQuery query{x.data(), lengths.data(), 0.1f, 0x1p-10f};
    counted("a block of 16 classes, 64 coordinates", "class", kNeighbours, static_cast<int64_t>(record.size()),
            [&] { l.sixteen(record.data(), {kCount, kTails}, query, 0.f, est, upper); });
}

}  // namespace
}  // namespace headlong

int main(int count, char** arguments) {
    using namespace headlong;
    const char* level = count > 1 ? arguments[1] : "";
    const Kernels* kernels = kernels_for(level);
    if (kernels == nullptr) {
        std::fprintf(stderr, "this processor lacks %s\n", level);
        return 1;
    }
    std::printf("%p\n", reinterpret_cast<void*>(counted_mark));
    Noise noise(1);
    codes(*kernels, noise);
    rows(*kernels, noise);
    lanes(*kernels, noise);
    classes(*kernels, noise);
    encoder(*encoder_for(level), *kernels, noise);
    looks(*looks_for(level), noise);
    return 0;
}
