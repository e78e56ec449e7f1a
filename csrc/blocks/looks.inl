// The looks of blocks/looks.h in the compiler's own vectors: the same lines for every instruction set, which says how sixteen
// codes become numbers (`floats`) and which of sixteen numbers reach another (`reaching`).

template <typename V>
inline V read(const uint8_t* from) {
    V value;
    std::memcpy(&value, from, sizeof(V));
    return value;
}

template <typename V>
inline F16 sums(const uint8_t* rows, int64_t count, const float* x) {
    F16 even = {}, odd = {};
    int64_t j = 0;
    for (; j + 2 <= count; j += 2) {
        even += floats(read<V>(rows + j * kNeighbours)) * x[j];
        odd += floats(read<V>(rows + (j + 1) * kNeighbours)) * x[j + 1];
    }
    if (j < count) even += floats(read<V>(rows + j * kNeighbours)) * x[j];
    return even + odd;
}

uint32_t sixteen(const uint8_t* record, const RecordShape& shape, const LookQuery& query, float tau, float* est, float* upper) {
    const uint8_t* lengths = record + shape.count * kNeighbours;
    const uint8_t* numbers = lengths + shape.tails * kNeighbours;
    const F16 scale = read<F16>(numbers), unit = read<F16>(numbers + 64), base = read<F16>(numbers + 128);
    const F16 middle = base + query.add + scale * sums<Codes16>(record, shape.count, query.x);
    const F16 top = middle + (unit * sums<Lengths16>(lengths, shape.tails, query.lengths) + query.slack);
    std::memcpy(est, &middle, sizeof(middle));
    std::memcpy(upper, &top, sizeof(top));
    return reaching(upper, tau);
}

uint32_t ray(const uint8_t* record, const RecordShape& shape, const LookQuery& query, float end, float tau, float* est, float* upper) {
    const uint8_t* lengths = record + 2 * kNeighbours;
    float numbers[4];  // unit of the scales, of the bases, least base, unit
    std::memcpy(numbers, lengths + shape.tails * kNeighbours, sizeof(numbers));
    const F16 base = floats(read<Lengths16>(record + kNeighbours)) * numbers[1] + numbers[2];
    const F16 middle = base + query.add + floats(read<Codes16>(record)) * (numbers[0] * end);
    const F16 top = middle + (sums<Lengths16>(lengths, shape.tails, query.lengths) * numbers[3] + query.slack);
    std::memcpy(est, &middle, sizeof(middle));
    std::memcpy(upper, &top, sizeof(top));
    return reaching(upper, tau);
}

void ray_nodes(const uint8_t* record, const RecordShape& shape, const LookQuery& query, const float* ends, float* upper) {
    const uint8_t* numbers = record + shape.tails * kNeighbours;
    F16 end;
    std::memcpy(&end, ends, sizeof(end));
    const F16 high = read<F16>(numbers) * end, low = read<F16>(numbers + 64) * end;
    const F16 base = read<F16>(numbers + 128), unit = read<F16>(numbers + 192);
    const F16 top = base + query.add + (high > low ? high : low) + (unit * sums<Lengths16>(record, shape.tails, query.lengths) + query.slack);
    std::memcpy(upper, &top, sizeof(top));
}

inline float total_of(F16 sum) {
    typedef float F8 __attribute__((vector_size(32)));
    typedef float F4 __attribute__((vector_size(16)));
    F8 halves[2];
    std::memcpy(halves, &sum, sizeof(sum));
    const F8 eight = halves[0] + halves[1];
    F4 quarters[2];
    std::memcpy(quarters, &eight, sizeof(eight));
    const F4 four = quarters[0] + quarters[1];
    return (four[0] + four[1]) + (four[2] + four[3]);
}

template <typename T>
inline float product(const T* codes, int64_t count, const float* x) {
    F16 sum = {};
    int64_t j = 0;
    for (; j + kNeighbours <= count; j += kNeighbours) {
        F16 values;
        std::memcpy(&values, x + j, sizeof(values));
        typedef T V __attribute__((vector_size(16)));
        sum += floats(read<V>(reinterpret_cast<const uint8_t*>(codes + j))) * values;
    }
    float total = total_of(sum);
    for (; j < count; ++j) total += static_cast<float>(codes[j]) * x[j];
    return total;
}

float closer(const uint8_t* record, const RecordShape& shape, const LookQuery& query, float* est) {
    const uint8_t* lengths = record + shape.count;
    float numbers[2];
    std::memcpy(numbers, lengths + shape.tails, sizeof(numbers));
    *est += numbers[0] * product(reinterpret_cast<const int8_t*>(record), shape.count, query.x);
    return *est + (numbers[1] * product(lengths, shape.tails, query.lengths) + query.slack);
}

template <int Columns>
inline void spread_some(const int8_t* codes, int64_t rows, const float* x, float* out) {
    F16 sums[Columns] = {};
    for (int64_t j = 0; j < rows; ++j)
        for (int c = 0; c < Columns; ++c)
            sums[c] += floats(read<Codes16>(reinterpret_cast<const uint8_t*>(codes + (j * Columns + c) * kNeighbours))) * x[j];
    std::memcpy(out, sums, sizeof(sums));
}

void spread(const int8_t* codes, int64_t rows, int64_t n, const float* x, float* out) {
    int64_t c = 0;
    for (; c + kSpread <= n; c += kSpread) spread_some<4>(codes + c * rows, rows, x, out + c);
    for (; c < n; c += kNeighbours) spread_some<1>(codes + c * rows, rows, x, out + c);
}
