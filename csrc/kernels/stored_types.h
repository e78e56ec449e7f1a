// The types that rows are stored in; how entries of each are read: kernels/common/stored_entry.inl and block_rows.inl.
#pragma once

#include <cstdint>

namespace headlong {

// Those from q8_0 on are blocks of codes and scales, as GGUF files have them; of scaled, a whole row is one.
enum class Kind : int { f32, f16, bf16, q8_0, q4_0, q4_k, q5_k, q6_k, scaled };
constexpr const char* kKinds[] = {"float32", "float16", "bfloat16", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "int8"};

constexpr bool in_blocks_of_codes(Kind kind) { return kind >= Kind::q8_0; }

// The bytes of one number; 0 where blocks of codes have no such size.
constexpr int64_t item_bytes(Kind kind) { return kind == Kind::f32 ? 4 : in_blocks_of_codes(kind) ? 0 : 2; }

// Weights of a block and its bytes; 0 and those beside the codes where a row is one block.
struct BlockSize {
    int64_t weights, bytes;
};
constexpr BlockSize kBlockSizes[] = {{32, 34}, {32, 18}, {256, 144}, {256, 176}, {256, 210}, {0, 4}};
constexpr BlockSize block_size(Kind kind) { return kBlockSizes[static_cast<int>(kind) - static_cast<int>(Kind::q8_0)]; }

constexpr int64_t row_bytes(Kind kind, int64_t dim) {
    if (!in_blocks_of_codes(kind)) return dim * item_bytes(kind);
    const BlockSize size = block_size(kind);
    return size.weights == 0 ? dim + size.bytes : dim / size.weights * size.bytes;
}

}  // namespace headlong
