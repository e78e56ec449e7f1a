// The rule of int8 codes, for rows as they are stored and for planes of rotated rows.
// Included inside the anonymous namespace of a translation unit.

// max / 127, rounded up so that no code is beyond 127; 0, and all codes zero, where a subnormal step would lose its relative precision.
inline float int8_step(float most) {
    const double step = static_cast<double>(most) / 127;
    float up = static_cast<float>(step);
    if (static_cast<double>(up) < step) up = std::nextafterf(up, __builtin_inff());
    return up >= 1.1754944e-38f ? up : 0.f;
}

// Numbers of steps, float or double, one or a vector of them, to the nearest whole one up to 127, halves to even. They are cut to
// their ends before they are rounded, so that no compiler fuses that with the product that they came from.
template <typename S, typename V>
inline V int8_codes(V steps) {
    const V top = V{} + S{127}, turn = V{} + (sizeof(S) == 4 ? S{12582912} : S{6755399441055744});  // 1.5 * 2^23, 1.5 * 2^52
    steps = steps > -top ? steps : -top;
    steps = steps < top ? steps : top;
    return (steps + turn) - turn;
}
