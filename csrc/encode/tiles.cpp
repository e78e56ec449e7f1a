#include "encode/tiles.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "runtime/shared_work.h"
#include "scan/tiles.h"

namespace headlong {
namespace {

// Puts the codes of one class, `groups` of 32, where scan/tiles.h has them.
void pack(const uint8_t* u, int64_t groups, int bits, uint8_t* to) {
    constexpr int64_t kWord = kTile * 4;
    for (int64_t g = 0; g < groups; ++g, u += 32, to += bits * kWord) {
        if (bits == 8) {
            for (int quad = 0; quad < 8; ++quad) std::memcpy(to + quad * kWord, u + quad * 4, 4);
            continue;
        }
        uint8_t* word = to;
        int left = bits;
        for (int field = 4; field > 0; field /= 2) {
            if (!(bits & field)) continue;
            left -= field;
            const int each = 8 / field, mask = (1 << field) - 1;
            for (int quad = 0; quad < 8; quad += each, word += kWord)
                for (int i = 0; i < 4; ++i) {
                    int byte = 0;
                    for (int k = 0; k < each; ++k) byte |= (u[(quad + k) * 4 + i] >> left & mask) << k * field;
                    word[i] = static_cast<uint8_t>(byte);
                }
        }
    }
}

}  // namespace

void code_tiles(const float* v, int64_t n, int64_t m, int bits, float half_step, int least, uint8_t* tiles, int64_t tile_bytes, float* scale, float* error,
                float* length, int threads) {
    const int64_t groups = (m + 31) / 32, count = (n + kTile - 1) / kTile;
    const float high = static_cast<float>((1 << bits) - 1), low = static_cast<float>(least);
    over_chunks(count, threads, [&](int, int64_t tile) {
        std::vector<uint8_t> u(groups * 32, 0);
        std::vector<float> q(m);
        for (int64_t row = tile * kTile; row < std::min(n, (tile + 1) * kTile); ++row) {
            const float* own = v + row * m;
            double square = 0, along = 0, size = 0, off = 0;
            for (int64_t j = 0; j < m; ++j) square += static_cast<double>(own[j]) * own[j];
            const float unit = static_cast<float>(std::sqrt(square / static_cast<double>(m))) * half_step, inverse = unit > 0 ? 1 / unit : 0.f;
            const bool sized = std::isfinite(inverse);
            for (int64_t j = 0; j < m; ++j) {
                const float at = sized ? std::floor((own[j] * inverse + (high + 1)) * 0.5f) : low;
                const float code = std::min(high, std::max(low, at));
                u[j] = static_cast<uint8_t>(code);
                q[j] = 2 * code - high;
            }
            for (int64_t j = 0; j < m; ++j) along += static_cast<double>(own[j]) * q[j], size += static_cast<double>(q[j]) * q[j];
            scale[row] = sized && along > 0 ? static_cast<float>(square / along) : 0.f;
            for (int64_t j = 0; j < m; ++j) {
                const double one = static_cast<double>(scale[row]) * q[j] - own[j];
                off += one * one;
            }
            error[row] = static_cast<float>(std::sqrt(off) * (1 + 1e-6) + 0x1p-22 * std::sqrt(square));  // the scale is rounded: not quite at a right angle
            length[row] = static_cast<float>(std::sqrt(size) * (1 + 1e-6));
            pack(u.data(), groups, bits, tiles + tile * tile_bytes + (row - tile * kTile) * 4);
        }
    });
}

}  // namespace headlong
