// Rows as they are stored: products within their bounds of sums in long double, the rest bit for bit.
#include <algorithm>
#include <cmath>

#include "native/cases.h"
#include "runtime/scratch.h"

namespace headlong {

void Check::note(const char* kernel, bool right, const std::vector<uint8_t>& wrote) {
    ++comparisons_;
    for (const uint8_t byte : wrote) hash_ = (hash_ ^ byte) * 0x100000001B3u;
    if (!right && good()) fault_ = std::string(kernel) + " of " + level_.name + " differs in the round seeded with " + std::to_string(seed_);
}


void Check::within(const char* kernel, const std::vector<double>& got, const std::vector<double>& exact, const std::vector<double>& bound) {
    bool right = true;
    for (size_t i = 0; i < got.size(); ++i) right &= std::fabs(got[i] - exact[i]) <= bound[i];
    std::vector<uint8_t> wrote;
    put(wrote, got);
    note(kernel, right, wrote);
}

// Finite numbers; wild: subnormals and both zeros among them.
Stored stored(Noise& noise, Kind kind, int64_t n, bool wild) {
    Stored out;
    out.bytes.resize(n * (kind == Kind::f32 ? 4 : 2));
    out.values.resize(n);
    for (int64_t i = 0; i < n; ++i) {
        const float value = noise.uniform(-2, 2);
        uint32_t raw;
        std::memcpy(&raw, &value, 4);
        if (kind == Kind::f32) {
            if (wild && noise.below(8) == 0) raw &= 0x807FFFFF;  // zero or subnormal
            std::memcpy(&out.bytes[4 * i], &raw, 4);
            std::memcpy(&out.values[i], &raw, 4);
            continue;
        }
        uint16_t half = static_cast<uint16_t>(raw >> 16);
        float back;
        if (kind == Kind::bf16) {
            raw &= 0xFFFF0000;
            std::memcpy(&back, &raw, 4);
        } else {
            do half = static_cast<uint16_t>(noise.next());
            while ((half & 0x7C00) > (wild ? 0x7800 : 0x4400));
            const int exponent = half >> 10 & 31, mantissa = half & 0x3FF;
            back = std::ldexp(static_cast<float>(exponent == 0 ? mantissa : mantissa + 1024), (exponent == 0 ? 1 : exponent) - 25);
            if (half & 0x8000) back = -back;
        }
        std::memcpy(&out.bytes[2 * i], &half, 2);
        out.values[i] = back;
    }
    return out;
}

namespace {

struct Exact {
    std::vector<double> sum, size;  // of the products, and of their sizes
};

template <typename T>
Exact products(const std::vector<float>& rows, int64_t dim, int64_t count, const std::vector<T>& x, int64_t stride, int n) {
    Exact out;
    for (int q = 0; q < n; ++q)
        for (int64_t r = 0; r < count; ++r) {
            long double sum = 0, size = 0;
            for (int64_t j = 0; j < dim; ++j) {
                const long double product = static_cast<long double>(rows[r * dim + j]) * x[q * stride + j];
                sum += product;
                size += product < 0 ? -product : product;
            }
            out.sum.push_back(static_cast<double>(sum));
            out.size.push_back(static_cast<double>(size));
        }
    return out;
}

std::vector<double> times(const std::vector<double>& sizes, double unit) {
    std::vector<double> out(sizes);
    for (double& v : out) v = v * unit + 1e-37;  // a subnormal product may be rounded by more
    return out;
}

template <typename T>
std::vector<double> doubles(const std::vector<T>& from) { return std::vector<double>(from.begin(), from.end()); }

void dense(Check& check, Kind kind, int64_t dim) {
    Noise& noise = check.noise();
    const Kernels& k = check.kernels();
    const int64_t count = 1 + noise.below(20);
    const int n = 1 + static_cast<int>(noise.below(kRowQueries));
    const Stored rows = stored(noise, kind, dim * count, false);
    const int64_t wide = query_stride(dim);
    Scratch<float> x(kRowQueries * wide);
    const std::vector<float> drawn = noise.floats(kRowQueries * dim, -1, 1);
    for (int q = 0; q < kRowQueries; ++q) std::fill(std::copy_n(&drawn[q * dim], dim, &x[q * wide]), &x[q * wide] + wide, 0.f);
    // A rounding for each coordinate of a sum and for each sum, and one more where products are rounded apart.
    const double unit = (static_cast<double>(dim) / k.lanes + k.lanes + 2) * 0x1p-24;
    std::vector<float> out(n * count), one(count);
    k.dense_rows(rows.bytes.data(), kind, dim, count, x.data(), n, out.data(), count);
    const Exact few = products(rows.values, dim, count, drawn, dim, n);
    check.within("dense_rows", doubles(out), few.sum, times(few.size, unit));
    const int alone = static_cast<int>(noise.below(n));  // a product does not depend on who else is there
    k.dense_rows(rows.bytes.data(), kind, dim, count, x.data() + alone * wide, 1, one.data(), count);
    check.note("dense_rows of one query", std::equal(one.begin(), one.end(), out.begin() + alone * count), {});
}

void exact(Check& check, Kind kind, int64_t dim) {
    Noise& noise = check.noise();
    const Kernels& k = check.kernels();
    const int64_t count = 1 + noise.below(12), wide = (dim + kWide - 1) / kWide * kWide;
    const int n = 1 + static_cast<int>(noise.below(5));
    const Stored rows = stored(noise, kind, dim * count, true);
    std::vector<double> x(n * wide, 0.0), out(n * count), block(n * count), scratch(count * wide);
    for (int q = 0; q < n; ++q)
        for (int64_t j = 0; j < dim; ++j) x[q * wide + j] = noise.uniform(-1, 1) * (1 + 0x1p-30);
    std::vector<int64_t> ids(count);
    for (int64_t r = 0; r < count; ++r) ids[r] = r;
    for (int q = 0; q < n; ++q)
        k.dot_rows(rows.bytes.data(), kind, dim, q % 2 ? ids.data() : nullptr, count, &x[q * wide], &out[q * count]);
    const Exact sums = products(rows.values, dim, count, x, wide, n);
    check.within("dot_rows", out, sums.sum, times(sums.size, (static_cast<double>(dim) + 2) * 0x1p-53));
    k.dot_block(rows.bytes.data(), kind, dim, count, x.data(), n, scratch.data(), block.data(), count);
    std::vector<uint8_t> wrote;
    put(wrote, block);
    check.note("dot_block", std::memcmp(out.data(), block.data(), out.size() * sizeof(double)) == 0, wrote);
}

void rotated(Check& check, Kind kind, int64_t dim) {
    Noise& noise = check.noise();
    const int64_t n = 1 + noise.below(150);
    const Stored matrix = stored(noise, kind, dim * n, false);
    std::vector<double> x(dim), out(n), sums, bound;
    for (double& v : x) v = noise.uniform(-1, 1);
    check.kernels().rotate(matrix.bytes.data(), kind, dim, n, x.data(), out.data());
    for (int64_t i = 0; i < n; ++i) {
        long double sum = 0, size = 0;
        for (int64_t j = 0; j < dim; ++j) {
            const long double product = static_cast<long double>(matrix.values[j * n + i]) * x[j];
            sum += product;
            size += product < 0 ? -product : product;
        }
        sums.push_back(static_cast<double>(sum));
        bound.push_back(static_cast<double>(size) * (static_cast<double>(dim) + 2) * 0x1p-53);
    }
    check.within("rotate", out, sums, bound);
}

void alike(Check& check, Kind kind, int64_t dim) {
    Noise& noise = check.noise();
    Stored row = stored(noise, kind, dim, true);
    if (noise.below(8) == 0) std::memset(&row.bytes[row.bytes.size() - 2], 0xFF, 2);  // no number
    check.exact("widen", [&](const Kernels& k, std::vector<uint8_t>& out) {
        std::vector<double> wide(dim);
        put(out, k.widen(row.bytes.data(), kind, dim, wide.data()));
        put(out, wide);
        put(out, k.largest_double(wide.data(), dim));
    });
    check.same("row_norm", [&](const Kernels& k, std::vector<uint8_t>& out) { put(out, k.row_norm(row.bytes.data(), kind, dim)); });
}

}  // namespace

void rows(Check& check) {
    const int64_t dims[] = {1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 130, 257};
    for (const Kind kind : {Kind::f32, Kind::f16, Kind::bf16}) {
        const int64_t dim = dims[check.noise().below(sizeof dims / sizeof dims[0])];
        dense(check, kind, dim);
        exact(check, kind, dim);
        if (kind != Kind::bf16) rotated(check, kind, dim);
        alike(check, kind, dim);
    }
}

}  // namespace headlong
