// The types that rows are stored in; how entries of each are read: kernels/common/stored_entry.inl and load_lanes.inl.
#pragma once

#include <cstdint>

namespace headlong {

enum class Kind : int { f32, f16, bf16 };
constexpr int64_t item_bytes(Kind kind) { return kind == Kind::f32 ? 4 : 2; }

}  // namespace headlong
