// A link from Python: ("affine", scale, shift), ("softcap", cap, 0) or ("table", start, step, values, left, right, error).
#pragma once

#include <vector>

#include "bind/arguments.h"
#include "executor/matrix.h"

namespace headlong {

// Sets the link of `e`; a table's values are kept in `kept`, its float32 cells in `arrays`.
void set_link(const nb::tuple& link, Matrix& e, std::vector<nb::object>& kept, std::vector<std::vector<float>>& arrays);

}  // namespace headlong
