// A batch of queries side by side, one in each lane: what a class costs all of them is read once, and what is summed for a
// query never leaves its lane. Included inside the anonymous namespace of a translation unit that defines
//
//   LaneOps<L>: F, I (L floats, L integers), X with take(codes of L queries), dots(sum, four codes of a class, X), `centred` where
//               it wants codes of eight bits less 128,
//               least, most (the second where the first is no number), not_below(a, b): a bit where not a < b,
//               negative(a): a bit where a < 0, sum, and power(y) = 2^max(y, -100) within 2^-13 relatively.

template <int L>
inline typename LaneOps<L>::F lane_load(const float* p) {
    typename LaneOps<L>::F v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

// Four codes of fewer than 8 bits out of a word; a level that has a better way than its own for bytes has a specialisation.
template <typename Ops>
struct FewBits {
    static uint32_t take(uint32_t word, int shift, uint32_t mask) { return word >> shift & mask; }
    static typename Ops::I dots(typename Ops::I sum, uint32_t code, typename Ops::X x) { return Ops::dots(sum, code, x); }
};

constexpr int64_t kLaneAhead = 16384;  // bytes: how far ahead codes of blocks are asked for, each line once and in order

// Adds the products of one pass: a word, four codes of a row, at a time.
template <int L, int R, int V, bool Listed, bool Whole>
inline void tile_dots(const uint8_t* const* from, const uint8_t* ahead, const LanePass& pass, int lanes, int lane,
                      typename LaneOps<L>::I (&sum)[R][V]) {
    using Ops = LaneOps<L>;
    const int8_t* planes = pass.planes + lane * 4;
    const int bits = Whole ? 8 : pass.bits;
    const uint32_t mask = Whole ? ~0u : 0x01010101u * ((1u << bits) - 1);
    for (int64_t j = 0, words = pass.words; j < words; ++j) {
        if (Whole && !Listed && j * R % 16 < R) __builtin_prefetch(ahead + j * R / 16 * 64, 0, 2);
        for (int shift = 0; shift < 8; shift += bits, planes += lanes * 4) {
            typename Ops::X x[V];
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) x[v] = Ops::take(planes + v * L * 4);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                uint32_t code;
                std::memcpy(&code, Listed ? from[r] + j * 4 : from[0] + j * kLaneQuad + r * kLaneStep, 4);
                if constexpr (Whole) {
                    if (Ops::centred) code ^= 0x80808080u;
#pragma GCC unroll 16
                    for (int v = 0; v < V; ++v) sum[r][v] = Ops::dots(sum[r][v], code, x[v]);
                } else {
                    const auto few = FewBits<Ops>::take(code, shift, mask);
#pragma GCC unroll 16
                    for (int v = 0; v < V; ++v) sum[r][v] = FewBits<Ops>::dots(sum[r][v], few, x[v]);
                }
            }
        }
    }
}

// R rows from r0 on, V x L queries from lane `lane` on. Listed: rows by their ids; else the classes of a block, side by side.
// What is summed stays here until the last pass, and every address is read once: what is written might be an address.
template <int L, int R, int V, bool Listed>
inline void batch_tile(const LaneRows& rows, int64_t r0, const LanePass* passes, int pass_count, const float* base, const float* add,
                       int lanes, int lane, float* est) {
    using Ops = LaneOps<L>;
    using F = typename Ops::F;
    using I = typename Ops::I;
    int64_t ids[R];
    float* to[R];
    F total[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        ids[r] = Listed ? rows.ids[r0 + r] : rows.first + r0 + r;
        to[r] = est + (Listed ? rows.place[r0 + r] : r0 + r) * lanes + lane;
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) total[r][v] = base == nullptr ? lane_load<L>(to[r] + v * L) : lane_load<L>(add + lane + v * L) + base[ids[r]];
    }
    for (const LanePass* pass = passes; pass != passes + pass_count; ++pass) {
        const uint8_t* from[R];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) from[r] = rows.codes + pass->at + (Listed ? ids[r] * rows.row_step : (r0 + r) * kLaneStep);
        // A block's lines in equal parts by its tiles: the hardware does not foresee lines 256 bytes apart.
        const uint8_t* ahead = rows.codes + pass->at + r0 * pass->words * kLaneStep + kLaneAhead;
        I sum[R][V] = {};
        const bool whole = pass->bits == 8;
        if (whole) tile_dots<L, R, V, Listed, true>(from, ahead, *pass, lanes, lane, sum);
        else tile_dots<L, R, V, Listed, false>(from, ahead, *pass, lanes, lane, sum);
        const float* scale = pass->scale;
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) {
            I start = {};
            if (!Ops::centred || !whole) std::memcpy(&start, pass->start + lane + v * L, sizeof start);
            const F step = lane_load<L>(pass->step + lane + v * L);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                const I dot = (whole ? sum[r][v] : sum[r][v] + sum[r][v]) + start;
                total[r][v] += __builtin_convertvector(dot, F) * (step * scale[ids[r]]);
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) std::memcpy(to[r] + v * L, &total[r][v], sizeof total[r][v]);
}

template <int L, int R, int V, bool Listed>
void lanes_tiles_of(const LaneRows& rows, const LanePass* passes, int pass_count, const float* base, const float* add, int lanes,
                    int lane, float* est) {
    int64_t r = 0;
    for (; r + R <= rows.count; r += R) {
        for (int64_t next = r + R; Listed && next < r + 2 * R && next < rows.count; ++next)  // the hardware does not foresee them
            for (int64_t at = 0; at < rows.row_step; at += 64) __builtin_prefetch(rows.codes + rows.ids[next] * rows.row_step + at);
        batch_tile<L, R, V, Listed>(rows, r, passes, pass_count, base, add, lanes, lane, est);
    }
    for (; R > 4 && r + 4 <= rows.count; r += 4) batch_tile<L, 4, V, Listed>(rows, r, passes, pass_count, base, add, lanes, lane, est);
    for (; r < rows.count; ++r) batch_tile<L, 1, V, Listed>(rows, r, passes, pass_count, base, add, lanes, lane, est);
}

template <int L, int R, int V>
void batch_tiles(const LaneRows& rows, const LanePass* passes, int pass_count, const float* base, const float* add, int lanes,
                 int lane, float* est) {
    if (rows.ids == nullptr) lanes_tiles_of<L, R, V, false>(rows, passes, pass_count, base, add, lanes, lane, est);
    else lanes_tiles_of<L, R < 8 ? R : 8, V, true>(rows, passes, pass_count, base, add, lanes, lane, est);
}

inline float lane_exponential(uint64_t& state) {  // -log of a uniform number, by splitmix64
    state += 0x9E3779B97F4A7C15u;
    uint64_t x = state;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x ^= x >> 31;
    return -std::log((static_cast<float>(x >> 11) + 0.5f) * 0x1p-53f);
}

// Where a class is to be reported, or its part of the line of gaps holds a point.
template <int L>
__attribute__((noinline)) void lane_hits(const LaneLook& look, LaneState& state, int64_t id, int lane, uint32_t reaches, uint32_t out,
                                         const typename LaneOps<L>::F& est, const typename LaneOps<L>::F& upper,
                                         typename LaneOps<L>::F& middle, typename LaneOps<L>::F& gap, typename LaneOps<L>::F& line) {
    using F = typename LaneOps<L>::F;
    float e[L], u[L], m[L], g[L];
    std::memcpy(e, &est, sizeof e);
    std::memcpy(u, &upper, sizeof u);
    std::memcpy(m, &middle, sizeof m);
    std::memcpy(g, &gap, sizeof g);
    if (lane + L > look.n)
        for (int i = 0; i < L; ++i)
            if (lane + i >= look.n) m[i] = g[i] = 0, reaches &= ~(1u << i), out &= ~(1u << i);  // no query
    LaneHit* const hits = state.hits + state.hit_count;
    int64_t count = 0;
    for (uint32_t some = out; some != 0; some &= some - 1) {
        const int i = __builtin_ctz(some);
        hits[count++] = {static_cast<int32_t>(id), lane + i, -1, e[i], u[i], m[i], g[i]};
        m[i] = g[i] = 0;
    }
    std::memcpy(&middle, m, sizeof m);
    std::memcpy(&gap, g, sizeof g);
    const F after = line - gap;
    float left[L];
    std::memcpy(left, &after, sizeof after);
    for (uint32_t some = (reaches & ~out) | LaneOps<L>::negative(after); some != 0; some &= some - 1) {
        const int i = __builtin_ctz(some);
        int32_t drawn = 0;
        for (; left[i] < 0; ++drawn) left[i] += look.theta[lane + i] * lane_exponential(state.noise[lane + i]);
        hits[count++] = {static_cast<int32_t>(id), lane + i, drawn, e[i], u[i], m[i], g[i]};
    }
    std::memcpy(&line, left, sizeof line);
    state.hit_count += count;
}

// Where ids alone are wanted: the classes that reach tau.
template <int L, int V>
void lanes_reach_of(const LaneLook& look, const LaneRadius& radius, const LaneRows& rows, const float* est, LaneState& state) {
    using F = typename LaneOps<L>::F;
    for (int64_t row = 0; row < rows.count; ++row) {
        const int64_t id = rows.ids == nullptr ? rows.first + row : rows.ids[row];
        const int64_t place = rows.place == nullptr ? row : rows.place[row];
        const float* from = est + place * L * V;
        F upper[V];
        uint32_t reaches[V], some = 0;
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) {
            F rad = lane_load<L>(radius.constant + v * L);
            for (int t = 0; t < radius.terms; ++t) rad += lane_load<L>(radius.term[t] + v * L) * radius.slack[t][id];
            upper[v] = lane_load<L>(from + v * L) + rad;
            reaches[v] = LaneOps<L>::not_below(upper[v], lane_load<L>(look.tau + v * L));
            some |= reaches[v];
        }
        if (__builtin_expect(some == 0, 1)) continue;
        int rivals = 0;
        for (int v = 0; v < V; ++v) rivals += __builtin_popcount(reaches[v]);
        if (state.further != nullptr && look.rival * static_cast<float>(rivals) >= look.limit) {
            state.further[state.further_count] = static_cast<int32_t>(id);
            state.further_place[state.further_count++] = static_cast<int32_t>(place);
            continue;
        }
        for (int v = 0; v < V; ++v) {
            float ends[L];
            std::memcpy(ends, &upper[v], sizeof ends);
            for (uint32_t left = reaches[v]; left != 0; left &= left - 1) {
                const int i = __builtin_ctz(left), lane = v * L + i;
                if (lane < look.n) state.hits[state.hit_count++] = {static_cast<int32_t>(id), lane, 0, from[lane], ends[i], 0, 0};
            }
        }
    }
}

// With Bet, gaps have points; else the sums of middles times radii are wanted.
template <int L, int V, bool Bet>
void lanes_weigh_of(const LaneLook& look, const LaneRadius& radius, const LaneRows& rows, const float* est, LaneState& state) {
    using Ops = LaneOps<L>;
    using F = typename Ops::F;
    const int lanes = L * V;
    constexpr float kOctaves = 1.44269504f;  // in a factor of e
    const float slope = look.link.a * look.beta * kOctaves, more = 1 + look.slop;
    F middles[V] = {}, gaps[V] = {}, moved[V] = {}, left[V] = {};  // `left` in memory would make each class wait for the one before
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) left[v] = lane_load<L>(state.left + v * L);
    const bool choosy = state.further != nullptr;
    for (int64_t row = 0; row < rows.count; ++row) {
        const int64_t id = rows.ids == nullptr ? rows.first + row : rows.ids[row];
        const int64_t place = rows.place == nullptr ? row : rows.place[row];
        const float* from = est + place * lanes;
        F upper[V], middle[V], gap[V], wide[V], score = F{};
        uint32_t reaches[V], out[V];
        int rivals = 0;
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
            const F e = lane_load<L>(from + v * L);
            F rad = lane_load<L>(radius.constant + v * L);
            for (int t = 0; t < radius.terms; ++t) rad += lane_load<L>(radius.term[t] + v * L) * radius.slack[t][id];
            upper[v] = e + rad;
            wide[v] = rad * slope;
            middle[v] = Ops::power(e * slope - lane_load<L>(look.octaves + v * L));
            gap[v] = middle[v] * (Ops::power(wide[v]) * more - 1.f) + 2e-30f;
            reaches[v] = Ops::not_below(upper[v], lane_load<L>(look.tau + v * L));
            out[v] = Ops::not_below(gap[v], lane_load<L>(look.edge + v * L));
            if (choosy && Bet) score += Ops::least(gap[v] * lane_load<L>(look.worth + v * L), F{} + 1.f);
            if (choosy && reaches[v] != 0) rivals += __builtin_popcount(reaches[v]);
        }
        if (choosy && (Bet ? Ops::sum(score) : 0) + look.rival * static_cast<float>(rivals) >= look.limit) {
            state.further[state.further_count] = static_cast<int32_t>(id);
            state.further_place[state.further_count++] = static_cast<int32_t>(place);
            continue;
        }
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
            const F after = left[v] - gap[v];
            const uint32_t some = reaches[v] | out[v] | (Bet ? Ops::negative(after) : 0);
            if (__builtin_expect(some != 0, 0))
                lane_hits<L>(look, state, id, v * L, reaches[v], out[v], lane_load<L>(from + v * L), upper[v], middle[v], gap[v], left[v]);
            else left[v] = after;
            middles[v] += middle[v];
            gaps[v] += gap[v];
            if (!Bet) moved[v] += middle[v] * Ops::least(wide[v], F{} + 1e30f);
        }
    }
    for (int v = 0; v < V; ++v) {
        std::memcpy(state.left + v * L, &left[v], sizeof left[v]);
        for (int i = 0; i < L; ++i) {
            state.middle[v * L + i] += middles[v][i];
            state.gap[v * L + i] += gaps[v][i];
            state.moved[v * L + i] += moved[v][i] * (1 / static_cast<double>(kOctaves));
        }
    }
}

template <int L, int V>
void lanes_weigh_some(const LaneLook& look, const LaneRadius& radius, const LaneRows& rows, const float* est, LaneState& state) {
    if (!look.sums) lanes_reach_of<L, V>(look, radius, rows, est, state);
    else if (look.bet) lanes_weigh_of<L, V, true>(look, radius, rows, est, state);
    else lanes_weigh_of<L, V, false>(look, radius, rows, est, state);
}

// The largest estimates of runs of 16 classes, and the sums of exp(link(est) * beta - shift).
template <int L>
void lanes_largest_some(const float* est, int64_t count, int lanes, float* out) {
    for (int lane = 0; lane < lanes; lane += L)
        for (int64_t start = 0; start < count; start += kLaneRun) {
            typename LaneOps<L>::F most = lane_load<L>(est + start * lanes + lane);
            for (int64_t r = start + 1; r < count && r < start + kLaneRun; ++r)
                most = LaneOps<L>::most(lane_load<L>(est + r * lanes + lane), most);
            std::memcpy(out + start / kLaneRun * lanes + lane, &most, sizeof most);
        }
}

template <int L>
void lanes_sums_some(const LaneLook& look, const float* est, int64_t count, int lanes, double* out) {
    using F = typename LaneOps<L>::F;
    for (int lane = 0; lane < lanes; lane += L) {
        const F shift = lane_load<L>(look.octaves + lane);
        const float slope = look.link.a * look.beta * 1.44269504f;
        for (int64_t start = 0; start < count; start += 64) {
            F sum = F{};
            for (int64_t r = start; r < count && r < start + 64; ++r)
                sum += LaneOps<L>::power(lane_load<L>(est + r * lanes + lane) * slope - shift);
            for (int i = 0; i < L; ++i) out[lane + i] += sum[i];
        }
    }
}
