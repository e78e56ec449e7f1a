// The lanes' kernels by vectors of four: for instruction sets with registers of 128 bits, and for the reference.

void batch_scan(const LaneRows& rows, const LanePass* passes, int count, const float* base, const float* add, int lanes, float* est) {
    int lane = 0;
    for (; lane + 16 <= lanes; lane += 16) batch_tiles<4, 4, 4>(rows, passes, count, base, add, lanes, lane, est);
    if (lane < lanes) batch_tiles<4, 8, 2>(rows, passes, count, base, add, lanes, lane, est);
}

void batch_weigh(const LaneLook& look, const LaneRadius& radius, const LaneRows& rows, const float* est, LaneState& state) {
    switch (look.lanes) {
        case 8: return lanes_weigh_some<4, 2>(look, radius, rows, est, state);
        case 16: return lanes_weigh_some<4, 4>(look, radius, rows, est, state);
        case 32: return lanes_weigh_some<4, 8>(look, radius, rows, est, state);
        case 48: return lanes_weigh_some<4, 12>(look, radius, rows, est, state);
        default: return lanes_weigh_some<4, 16>(look, radius, rows, est, state);
    }
}

void batch_largest(const float* est, int64_t count, int lanes, float* out) { lanes_largest_some<4>(est, count, lanes, out); }

void batch_sums(const LaneLook& look, const float* est, int64_t count, int lanes, double* out) {
    lanes_sums_some<4>(look, est, count, lanes, out);
}
