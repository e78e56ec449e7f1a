// Estimates of a tile for some queries side by side: codes are unpacked once for all of them, integer sums stay in registers. Included behind
// scan/common.inl by a translation unit that defines the vector of its codes:
//
//   Q                       a register of LANES classes, four bytes each
//   load_codes(p), right<n>(q), left<n>(q), masked(q, m), merged(a, m, b) = (a & m) | b
//   JOINED(bits)            quads whose products are summed before they join a sum of 32 bits
//   dots<Bits>(sum, q, x)   sum += <four codes, four signed bytes> in each lane, of as many quads; of 8 bits, of the codes less 128 where kSigned
//   ROWS(lanes, bits)       of so many queries, those that are read in one go
//   AT_ONCE(rows)           registers of classes for so many
//   ahead(p, bytes)         asks for the lines there, into the second cache; always_inline, as GCC drops calls of what only prefetches

// `from`: the lowest bit of a field of `Bits` bits in each byte; `to`: where it is wanted.
template <int From, int To, int Bits>
inline Q field(Q word, Q mask) {
    if constexpr (From > To) word = right<From - To>(word);
    if constexpr (From < To) word = left<To - From>(word);
    return masked(word, mask);
}
template <int From, int To>
inline Q field_onto(Q word, Q mask, Q other) {
    if constexpr (From > To) word = right<From - To>(word);
    if constexpr (From < To) word = left<To - From>(word);
    return merged(word, mask, other);
}

// Quad G of a group of 32 coordinates; `group` is where the group's codes of these classes begin.
template <int Bits, int G>
inline Q quad(const uint8_t* group) {
    constexpr int64_t kWord = kTile * 4;
    if constexpr (Bits == 8) return load_codes(group + G * kWord);
    constexpr bool kFour = (Bits & 4) != 0, kTwo = (Bits & 2) != 0, kOne = (Bits & 1) != 0;
    Q all{};
    if constexpr (kOne) all = field<G, 0, 1>(load_codes(group + ((kFour ? 4 : 0) + (kTwo ? 2 : 0)) * kWord), bytes_of(1));
    if constexpr (kTwo) {
        const Q word = load_codes(group + ((kFour ? 4 : 0) + G / 4) * kWord);
        if constexpr (kOne) all = field_onto<2 * (G % 4), 1>(word, bytes_of(3 << 1), all);
        else all = field<2 * (G % 4), 0, 2>(word, bytes_of(3));
    }
    if constexpr (kFour) {
        constexpr int kTo = (kOne ? 1 : 0) + (kTwo ? 2 : 0);
        const Q word = load_codes(group + G / 2 * kWord);
        if constexpr (kTo > 0) all = field_onto<4 * (G % 2), kTo>(word, bytes_of(15 << kTo), all);
        else all = field<4 * (G % 2), 0, 4>(word, bytes_of(15));
    }
    return all;
}

// Quads G .. G + JOINED - 1; `x` has those of `Lanes` queries side by side, `Rows` of them are read.
template <int Bits, int Rows, int Lanes, int Vectors, int G, int... Joined>
inline __attribute__((always_inline)) void add_quads(const uint8_t* group, const int8_t* x, Sum (&sums)[Rows][Vectors], std::integer_sequence<int, Joined...>) {
    constexpr int kJoined = sizeof...(Joined);
    if constexpr (Rows == 1) {
        const decltype(broadcast(x)) fours[kJoined] = {broadcast(x + (G + Joined) * Lanes * 4)...};
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) {
            const Q codes[kJoined] = {quad<Bits, G + Joined>(group + v * LANES * 4)...};
            dots<Bits>(sums[0][v], codes, fours);
        }
    } else {
        Q codes[Vectors][kJoined];
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) ((codes[v][Joined] = quad<Bits, G + Joined>(group + v * LANES * 4)), ...);
#pragma GCC unroll 8
        for (int q = 0; q < Rows; ++q) {
            const decltype(broadcast(x)) fours[kJoined] = {broadcast(x + ((G + Joined) * Lanes + q) * 4)...};
#pragma GCC unroll 4
            for (int v = 0; v < Vectors; ++v) dots<Bits>(sums[q][v], codes[v], fours);
        }
    }
}

template <int Bits, int Rows, int Lanes, int Vectors, int G = 0>
inline __attribute__((always_inline)) void add_group(const uint8_t* group, const int8_t* x, Sum (&sums)[Rows][Vectors], Sum (&others)[Rows][Vectors]) {
    if constexpr (G < 8) {
        add_quads<Bits, Rows, Lanes, Vectors, G>(group, x, sums, std::make_integer_sequence<int, JOINED(Bits)>());
        add_group<Bits, Rows, Lanes, Vectors, G + JOINED(Bits)>(group, x, others, sums);
    }
}

// Some queries of `Lanes` that stand side by side, from `row` on.
template <int Bits, int Rows, int Lanes, int Vectors>
inline __attribute__((always_inline)) void add_segment(const uint8_t* codes, int64_t groups, const ScanPass& pass, int row, const uint8_t* scales, int64_t ask, float* est) {
    constexpr bool kTurns = Rows * Vectors < 8;  // two sums in turns: each waits for its last
    Sum sums[Rows][Vectors] = {}, others[Rows][Vectors] = {};
    auto& odd = kTurns ? others : sums;
    constexpr int64_t kAsked = Vectors * LANES * 4 < 64 ? 64 : Vectors * LANES * 4;
    const int8_t* x = pass.x + row * 4;
    for (int64_t g = 0; g < groups; ++g, codes += Bits * kTile * 4, x += 32 * Lanes) {
        if (ask != 0) {
#pragma GCC unroll 8
            for (int word = 0; word < Bits; ++word) ahead(codes + word * kTile * 4 + ask, kAsked);
        }
        add_group<Bits, Rows, Lanes, Vectors>(codes, x, sums, odd);
    }
    for (int q = 0; q < Rows; ++q) {
        const int32_t off = Bits == 8 && kSigned ? -pass.sum[row + q] : ((1 << Bits) - 1) * pass.sum[row + q];
        const F step = splat(pass.step[row + q]);
        for (int v = 0; v < Vectors; ++v) {
            const F dot = __builtin_convertvector((kTurns ? total(sums[q][v]) + total(others[q][v]) : total(sums[q][v])) * 2 - off, F);
            float* to = est + (row + q) * kTile + v * LANES;
            store(to, fused(dot, load_bytes(scales + v * LANES * 4) * step, load(to)));
        }
    }
}

template <int Bits, int Lanes>
inline void add_pass(const uint8_t* codes, int64_t groups, const ScanPass& pass, const uint8_t* scales, int64_t next, float* est) {
    constexpr int kRows = ROWS(Lanes, Bits), kVectors = AT_ONCE(kRows), kStep = kVectors * LANES;
    for (int64_t first = 0; first < kTile; first += kStep)
        for (int row = 0; row < Lanes; row += kRows) {
            // Each reading of a tile's classes asks for as many lines: one that asked for all would wait, and the others leave memory idle.
            const int64_t ask = row > 0 || first * 4 % 64 != 0 ? 0 : next;
            add_segment<Bits, kRows, Lanes, kVectors>(codes + first * 4, groups, pass, row, scales + first * 4, ask, est + first);
        }
}

template <int Lanes>
void estimate_lanes(const uint8_t* tile, const TileLayout& layout, const ScanPass* passes, int count, int64_t next, float* est) {
    for (int q = 0; q < Lanes; ++q) std::memcpy(est + q * kTile, tile + layout.bases, kTile * 4);
    for (int p = 0; p < count; ++p) {
        const TileSegment& segment = layout.segment[passes[p].segment];
        const int64_t ask = p > 0 && passes[p - 1].segment == passes[p].segment ? 0 : next;
        const uint8_t* scales = tile + layout.scales + passes[p].segment * kTile * 4;
#define HEADLONG_BITS(b) case b: add_pass<b, Lanes>(tile + segment.at, segment.groups, passes[p], scales, ask, est); break;
        switch (segment.bits) {
            HEADLONG_BITS(1) HEADLONG_BITS(2) HEADLONG_BITS(3) HEADLONG_BITS(4) HEADLONG_BITS(5) HEADLONG_BITS(6)
            default: add_pass<8, Lanes>(tile + segment.at, segment.groups, passes[p], scales, ask, est);
        }
#undef HEADLONG_BITS
    }
}

void estimate(const uint8_t* tile, const TileLayout& layout, const ScanPass* passes, int count, int lanes, int64_t next, float* est) {
    switch (lanes) {
        case 1: return estimate_lanes<1>(tile, layout, passes, count, next, est);
        case 2: return estimate_lanes<2>(tile, layout, passes, count, next, est);
        case 4: return estimate_lanes<4>(tile, layout, passes, count, next, est);
        default: return estimate_lanes<8>(tile, layout, passes, count, next, est);
    }
}

constexpr ScanKernels kScan = {estimate, radii, reach, masses, surprisals, linked, rotate};
