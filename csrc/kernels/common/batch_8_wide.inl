// The lanes' kernels by vectors of eight: for instruction sets that have no more. A level that has some from another leaves some out.

void batch_scan(const LaneRows& rows, const LanePass* passes, int count, const float* base, const float* add, int lanes, float* est) {
    int lane = 0;
    for (; lane + 16 <= lanes; lane += 16) batch_tiles<8, 4, 2>(rows, passes, count, base, add, lanes, lane, est);
    if (lane < lanes) batch_tiles<8, 4, 1>(rows, passes, count, base, add, lanes, lane, est);
}

[[maybe_unused]] void batch_weigh(const LaneLook& look, const LaneRadius& radius, const LaneRows& rows, const float* est, LaneState& state) {
    switch (look.lanes) {
        case 8: return lanes_weigh_some<8, 1>(look, radius, rows, est, state);
        case 16: return lanes_weigh_some<8, 2>(look, radius, rows, est, state);
        case 32: return lanes_weigh_some<8, 4>(look, radius, rows, est, state);
        case 48: return lanes_weigh_some<8, 6>(look, radius, rows, est, state);
        default: return lanes_weigh_some<8, 8>(look, radius, rows, est, state);
    }
}

[[maybe_unused]] void batch_largest(const float* est, int64_t count, int lanes, float* out) { lanes_largest_some<8>(est, count, lanes, out); }

[[maybe_unused]] void batch_sums(const LaneLook& look, const float* est, int64_t count, int lanes, double* out) {
    lanes_sums_some<8>(look, est, count, lanes, out);
}
