// What the codes of each class add up to, for kernels that ask for it (Kernels::summed): one pass over a level's codes when
// an executor is made.
#include <algorithm>

#include "executor/plan.h"
#include "runtime/pool.h"
#include "runtime/scratch.h"
#include "runtime/shared_work.h"

namespace headlong {
namespace {

void sum_block(const uint8_t* block, int64_t words, int32_t* sums) {
    for (int64_t j = 0; j < words; ++j, block += 4 * kBlock)
        for (int64_t c = 0; c < kBlock; ++c) sums[c] += (block[4 * c] + block[4 * c + 1]) + (block[4 * c + 2] + block[4 * c + 3]);
}

}  // namespace

std::vector<int32_t> code_sums(const Kernels& kernels, const Source& source, int64_t padded) {
    std::vector<int32_t> sums(source.segments.size() * padded, 0);
    constexpr int64_t kPiece = 64;  // blocks
    const int64_t blocks = padded / kBlock, pieces = (blocks + kPiece - 1) / kPiece;
    Turns<int64_t> next;
    run_parallel(static_cast<int>(std::min<int64_t>(thread_count(0), pieces)), [&](int) {
        Scratch<uint8_t> room(room_for_block(source));
        for (int64_t piece = next++; piece < pieces; piece = next++)
            for (int64_t b = piece * kPiece; b < std::min(blocks, (piece + 1) * kPiece); ++b) {
                const uint8_t* block = block_of(kernels, source, b, room.data());
                for (size_t s = 0; s < source.segments.size(); ++s) {
                    const Segment& seg = source.segments[s];
                    sum_block(block + seg.first_word * 4 * kBlock, seg.words, &sums[s * padded + b * kBlock]);
                }
            }
    });
    return sums;
}

}  // namespace headlong
