// Softmax of link(z) and its gradient, a row of logits at a time, for training heads. Included after kernels/common/all.inl.
//
// The row is the only array: forward reads it twice in cache-sized pieces, backward turns it into dloss/dz where it lies.

// f(z) and f'(z); of a table also the cell and how far z is into it.
inline Tabled linked_of(const Link& link, F z) {
    if (link.form == LinkForm::table) return tabled(link, z);
    if (link.form == LinkForm::gss) {  // a: centre, b: power; see links.Gss
        F x = z - link.a, t = vexp(vmin(x, -x)), one = splat(1.f) / (t + 1.f);
        F value = vmax(x, F{}) + vmin(x, F{}) * link.b + link.a - vlog(t + 1.f) * (link.b - 1.f);
        return {value, link.b - pick(x < F{}, t * one, one) * (link.b - 1.f), z, I{}};
    }
    if (link.form == LinkForm::softcap) {
        F value = vlink(link, z), share = value / link.a;
        return {value, 1.f - share * share, z, I{}};
    }
    return {z * link.a + link.b, splat(link.a), z, I{}};
}

inline F load_some(const float* p, int64_t n) {
    if (n >= LANES) return load(p);
    float some[LANES];
    for (int i = 0; i < LANES; ++i) some[i] = i < n ? p[i] : -kInfinity;
    return load(some);
}

constexpr int64_t kLossPiece = 64 * LANES;

double link_lse_of(const float* z, int64_t n, const Link& link) {
    double shift = -__builtin_inf(), total = 0;
    float f[kLossPiece];
    for (int64_t first = 0; first < n; first += kLossPiece) {
        const int64_t count = n - first < kLossPiece ? n - first : kLossPiece;
        F most = splat(-kInfinity), sum = F{};
        for (int64_t i = 0; i < count; i += LANES) {
            F value = linked_of(link, load_some(z + first + i, count - i)).value;
            store(f + i, value);
            most = vmax(value, most);
        }
        float top = -kInfinity;
        for (int i = 0; i < LANES; ++i) top = most[i] > top ? most[i] : top;
        if (top == -kInfinity) continue;
        for (int64_t i = 0; i < count; i += LANES) sum += vexp(load(f + i) - top);
        const double here = sum_lanes(sum), higher = top > shift ? top : shift;
        total = total * std::exp(shift - higher) + here * std::exp(top - higher);
        shift = higher;
    }
    return shift + std::log(total);
}

float link_at_of(float z, const Link& link) { return linked_of(link, splat(z)).value[0]; }

// z[i] <- scale (exp(f(z_i) - lse) - [i = target]) f'(z_i). With g the same without f':
// a table adds g to sums[0][cell] and g (z - knot) to sums[1][cell]; any other link adds g z and g.
void link_gradient_of(float* z, int64_t n, const Link& link, double lse, int64_t target, float scale, double* const* sums) {
    const float away = static_cast<float>(lse), at_target = z[target];
    F weighted = F{}, plain = F{};
    for (int64_t i = 0; i < n; i += LANES) {
        const Tabled f = linked_of(link, load_some(z + i, n - i));
        F g = vexp(f.value - away) * scale;
        I none = g == F{};
        F moment = pick(none, F{}, g * f.into), out = pick(none, F{}, g * f.slope);
        if (n - i >= LANES) {
            store(z + i, out);
        } else {
            for (int64_t j = 0; j < n - i; ++j) z[i + j] = out[j];
        }
        if (link.form != LinkForm::table) {
            weighted += moment;
            plain += g;
            continue;
        }
        float gs[LANES], moments[LANES];
        int32_t cells[LANES];
        store(gs, g);
        store(moments, moment);
        std::memcpy(cells, &f.cell, sizeof cells);
        for (int j = 0; j < LANES; ++j) {
            sums[0][cells[j]] += gs[j];
            sums[1][cells[j]] += moments[j];
        }
    }
    const Tabled f = linked_of(link, splat(at_target));
    z[target] -= scale * f.slope[0];
    const int64_t cell = link.form == LinkForm::table ? f.cell[0] : 0;
    const bool there = at_target - at_target == 0;  // an infinite logit has no place in a cell
    if (link.form == LinkForm::table) {
        sums[0][cell] -= scale;
        sums[1][cell] -= there ? static_cast<double>(scale) * f.into[0] : 0;
    } else {
        sums[0][0] += sum_lanes(weighted) - (there ? static_cast<double>(scale) * at_target : 0);
        sums[1][0] += sum_lanes(plain) - scale;
    }
}
