// Draws of one query from what a scan collected.
#pragma once

#include "codes/query_state.h"

namespace headlong {

class KeyCollector;

// The largest key of each draw. False where too many may have one, or beyond float32.
bool draws_of_codes(const QueryState& state, KeyCollector& keys);
// Draws of all classes that are not in their nucleus are drawn again, of those that come before them: `inside` says that all are in it then.
// Where the best hold the nucleus, `least` and `most` of them are in it, as closely as the draws among these and their error ask for.
// Of what may fail `delta` is for the intervals of all classes, and `budget` for bets.
void draw_into_nucleus(const QueryState& state, KeyCollector& keys, double delta, double budget);

}  // namespace headlong
