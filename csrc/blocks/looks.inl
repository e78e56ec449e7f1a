// The looks of blocks/looks.h in vectors: the same lines for every instruction set, which says what sixteen numbers are (F16, I16: see
// blocks/wide.inl), how codes become numbers (`floats`), what fewer than sixteen codes give (`short_product`), which of sixteen numbers
// reach another (`reaching`), and how those come to the front (`front`).

template <typename V>
inline F16 sums(const uint8_t* rows, int64_t count, const float* x) {
    F16 even = {}, odd = {};
    int64_t j = 0;
    for (; j + 2 <= count; j += 2) {
        even += floats(got<V>(rows + j * kNeighbours)) * x[j];
        odd += floats(got<V>(rows + (j + 1) * kNeighbours)) * x[j + 1];
    }
    if (j < count) even += floats(got<V>(rows + j * kNeighbours)) * x[j];
    return even + odd;
}

constexpr int32_t kPlaces[kNeighbours] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

uint32_t sixteen(const uint8_t* record, const RecordShape& shape, const LookQuery& query, float tau, float* est, float* upper) {
    const uint8_t* lengths = record + shape.count * kNeighbours;
    const uint8_t* numbers = lengths + shape.tails * kNeighbours;
    const F16 scale = got<F16>(numbers), unit = got<F16>(numbers + 64), base = got<F16>(numbers + 128);
    const F16 middle = base + query.add + scale * sums<Codes16>(record, shape.count, query.x);
    put(est, middle);
    put(upper, middle + (unit * sums<Lengths16>(lengths, shape.tails, query.lengths) + query.slack));
    return reaching(upper, tau);
}

inline float total_of(const F16& sum) {
    const F4 four = folded(sum);
    return (four[0] + four[1]) + (four[2] + four[3]);
}

constexpr int64_t kFew = 4;  // products that are added up one by one before a vector's sum is worth its folding

template <typename T>
inline float product(const T* codes, int64_t count, const float* x) {
    if (count <= kFew) {
        float total = 0;
        for (int64_t j = 0; j < count; ++j) total += static_cast<float>(codes[j]) * x[j];
        return total;
    }
    F16 sum = {};
    int64_t j = 0;
    for (; j + kNeighbours <= count; j += kNeighbours) {
        typedef T V __attribute__((vector_size(16)));
        sum += floats(got<V>(codes + j)) * got<F16>(x + j);
    }
    if (j < count) sum += short_product(codes + j, x + j, count - j);
    return total_of(sum);
}

// The bounds of one class, on top of the estimate that it had.
struct Bounds1 {
    float middle, top;
};

inline Bounds1 of_class(const uint8_t* record, const RecordShape& shape, const LookQuery& query, float est) {
    const uint8_t* lengths = record + shape.count;
    float numbers[2];
    std::memcpy(numbers, lengths + shape.tails, sizeof(numbers));
    const float middle = est + numbers[0] * product(reinterpret_cast<const int8_t*>(record), shape.count, query.x);
    return {middle, middle + (numbers[1] * product(lengths, shape.tails, query.lengths) + query.slack)};
}

float closer(const uint8_t* record, const RecordShape& shape, const LookQuery& query, float* est) {
    const Bounds1 of = of_class(record, shape, query, *est);
    *est = of.middle;
    return of.top;
}

template <int Columns>
inline void spread_some(const int8_t* codes, int64_t rows, const float* x, float* out) {
    F16 sums[Columns] = {};
    for (int64_t j = 0; j < rows; ++j)
#pragma GCC unroll 4
        for (int c = 0; c < Columns; ++c)
            sums[c] += floats(got<Codes16>(codes + (j * Columns + c) * kNeighbours)) * x[j];
#pragma GCC unroll 4
    for (int c = 0; c < Columns; ++c) put(out + c * kNeighbours, sums[c]);
}

void spread(const int8_t* codes, int64_t rows, int64_t n, const float* x, float* out) {
    int64_t c = 0;
    for (; c + kSpread <= n; c += kSpread) spread_some<4>(codes + c * rows, rows, x, out + c);
    for (; c < n; c += kNeighbours) spread_some<1>(codes + c * rows, rows, x, out + c);
}

int64_t listed(const float* x, int64_t n, float least, int32_t* out) {
    I16 at = got<I16>(kPlaces);
    int64_t found = 0;
    for (int64_t i = 0; i < n; i += kNeighbours, at += kNeighbours) {
        const uint32_t open = reaching(x + i, least);
        int32_t places[kNeighbours];
        put(places, at);
        front(open, places, out + found);
        found += __builtin_popcount(open);
    }
    return found;
}

inline float least_of(const F16& x) {
    const F4 least = least_four(x);
    const float left = least[0] < least[1] ? least[0] : least[1], right = least[2] < least[3] ? least[2] : least[3];
    return left < right ? left : right;
}

// The largest of sixteen lanes, each the largest of its column: sixteen numbers reach the least of those. What reaches it, too, is few,
// of which one after the other is counted until there are enough.
int64_t largest(const float* x, int64_t n, int64_t wanted, float least, float* work, int32_t* out) {
    const F16 none = F16{} + -__builtin_inff();
    F16 top = none;
    for (int64_t i = 0; i < n; i += kNeighbours) top = larger(got<F16>(x + i), top);
    const float reached = least_of(top);
    const int64_t count = listed(x, n, reached > least ? reached : least, out);
    if (count <= wanted) return count;
    const int64_t padded = (count + kNeighbours - 1) / kNeighbours * kNeighbours;
    for (int64_t i = 0; i < count; ++i) work[i] = x[out[i]];
    for (int64_t i = count; i < padded; ++i) work[i] = -__builtin_inff();
    float edge = __builtin_nanf("");  // which no number reaches
    int64_t above = 0, found = 0;
    while (found < wanted) {
        F16 next = none;
        for (int64_t i = 0; i < padded; i += kNeighbours) next = larger(below(got<F16>(work + i), edge), next);
        edge = -least_of(-next);
        above = found;
        found = 0;
        for (int64_t i = 0; i < padded; i += kNeighbours) found += __builtin_popcount(reaching(work + i, edge));
    }
    int64_t equal = wanted - above, kept = 0;
    for (int64_t i = 0; i < count; ++i) {
        const bool here = work[i] > edge || (work[i] == edge && equal > 0);
        equal -= work[i] == edge;
        out[kept] = out[i];
        kept += here;
    }
    return kept;
}

int64_t taken(uint32_t open, int32_t first, const float* est, const float* upper, const OpenClasses& to) {
    int32_t places[kNeighbours];
    put(places, got<I16>(kPlaces) + first);
    front(open, places, to.places);
    front(open, est, to.est);
    front(open, upper, to.upper);
    return __builtin_popcount(open);
}

constexpr int64_t kAhead = 6;  // blocks asked for before they are read
constexpr int kUsual = 2;      // classes of a block that reach the threshold, mostly no more

inline void ask_for(const uint8_t* from, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at);
}

BlocksOpened opened(const BlockList& list, const LookQuery& query, float tau, int64_t most, const OpenClasses& to) {
    const int64_t bytes = list.shape.group_bytes();
    BlocksOpened out;
    while (out.passed < list.count && out.found < most) {
        if (out.passed + kAhead < list.known) ask_for(list.records + list.groups[out.passed + kAhead] * bytes, bytes);
        const int32_t group = list.groups[out.passed++];
        if (!(list.bounds[group] >= tau)) continue;
        const uint8_t* record = list.records + group * bytes;
        float est[kNeighbours], upper[kNeighbours];
        ++out.opened;
        uint32_t open = sixteen(record, list.shape, query, tau, est, upper);
        if (list.there != nullptr) open &= list.there[group];
        int32_t* places = to.places + out.found;
        out.found += taken(open, group * kNeighbours, est, upper, {places, to.est + out.found, to.upper + out.found});
        for (int i = 0; i < kUsual; ++i) ask_for(list.closer + places[i] * list.closer_bytes, list.closer_bytes);
    }
    return out;
}

int64_t closer_of(const uint8_t* records, const RecordShape& shape, const LookQuery& query, float tau, const OpenClasses& of, int64_t count) {
    const int64_t bytes = shape.count + shape.tails + 8;
    const RecordShape own = shape;  // of which the compiler knows that nothing written here changes it
    const LookQuery x = query;
    int64_t looked = 0;
    for (int64_t i = 0; i < count; ++i) {
        if (!(of.upper[i] >= tau)) continue;
        const Bounds1 found = of_class(records + of.places[i] * bytes, own, x, of.est[i]);
        of.est[i] = found.middle;
        of.upper[i] = found.top;
        ++looked;
    }
    return looked;
}

constexpr Looks kLooks = {sixteen, closer, spread, listed, largest, taken, opened, closer_of};
