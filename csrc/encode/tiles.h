// Few-bit codes of rotated rows, each by itself, in the tiles of scan/tiles.h. encode/tiles.py states the rule in NumPy.
#pragma once

#include <cstdint>

namespace headlong {

// Of v [n][m], rows of a segment: their codes in tiles `tile_bytes` apart, and scale = |v|^2 / <v, q>, |scale q - v| and |q| [n].
// `half_step`: half of the step for a row whose mean square is one; `least`: the smallest code.
void code_tiles(const float* v, int64_t n, int64_t m, int bits, float half_step, int least, uint8_t* tiles, int64_t tile_bytes, float* scale, float* error,
                float* length, int threads);

}  // namespace headlong
