// Sums over columns of a coordinate-major matrix, written as plain loops and compiled once for each instruction set.
// Included inside the anonymous namespace of adaptive_portable.cpp, adaptive_avx2.cpp and adaptive_avx512.cpp.

constexpr int64_t kStrip = 512;  // classes whose sums stay in the first cache

// est[i] = sum_j c[j] w[ids[j]][i],  var[i] = sum_j d[j] w[ids[j]][i]^2   for classes first .. first + n - 1
void moments(const float* columns, int64_t stride, const int32_t* ids, const float* c, const float* d, int64_t m,
             int64_t first, int64_t n, float* __restrict est, float* __restrict var) {
    for (int64_t at = 0; at < n; at += kStrip) {
        const int64_t size = n - at < kStrip ? n - at : kStrip;
        float* __restrict e = est + at;
        float* __restrict v = var + at;
        for (int64_t i = 0; i < size; ++i) e[i] = v[i] = 0.f;
        int64_t j = 0;
        for (; j + 4 <= m; j += 4) {
            const float* w0 = columns + ids[j] * stride + first + at;
            const float* w1 = columns + ids[j + 1] * stride + first + at;
            const float* w2 = columns + ids[j + 2] * stride + first + at;
            const float* w3 = columns + ids[j + 3] * stride + first + at;
            const float c0 = c[j], c1 = c[j + 1], c2 = c[j + 2], c3 = c[j + 3];
            const float d0 = d[j], d1 = d[j + 1], d2 = d[j + 2], d3 = d[j + 3];
            for (int64_t i = 0; i < size; ++i) {
                e[i] += (c0 * w0[i] + c1 * w1[i]) + (c2 * w2[i] + c3 * w3[i]);
                v[i] += (d0 * w0[i] * w0[i] + d1 * w1[i] * w1[i]) + (d2 * w2[i] * w2[i] + d3 * w3[i] * w3[i]);
            }
        }
        for (; j < m; ++j) {
            const float* w0 = columns + ids[j] * stride + first + at;
            const float c0 = c[j], d0 = d[j];
            for (int64_t i = 0; i < size; ++i) {
                e[i] += c0 * w0[i];
                v[i] += d0 * w0[i] * w0[i];
            }
        }
    }
}

// A block of m <= 16 neighbouring columns: s[i] = sum_j x[j] w[j][i];  est += s, and where they are asked for
// square += s^2. `columns` starts at the block's first column.
void block(const float* columns, int64_t stride, const float* x, int64_t m, int64_t first, int64_t n,
           float* __restrict est, float* __restrict square) {
    float strip[kStrip];
    for (int64_t at = 0; at < n; at += kStrip) {
        const int64_t size = n - at < kStrip ? n - at : kStrip;
        for (int64_t i = 0; i < size; ++i) strip[i] = 0.f;
        int64_t j = 0;
        for (; j + 4 <= m; j += 4) {
            const float* w0 = columns + j * stride + first + at;
            const float *w1 = w0 + stride, *w2 = w1 + stride, *w3 = w2 + stride;
            const float c0 = x[j], c1 = x[j + 1], c2 = x[j + 2], c3 = x[j + 3];
            for (int64_t i = 0; i < size; ++i) strip[i] += (c0 * w0[i] + c1 * w1[i]) + (c2 * w2[i] + c3 * w3[i]);
        }
        for (; j < m; ++j) {
            const float* w0 = columns + j * stride + first + at;
            const float c0 = x[j];
            for (int64_t i = 0; i < size; ++i) strip[i] += c0 * w0[i];
        }
        for (int64_t i = 0; i < size; ++i) est[at + i] += strip[i];
        if (square != nullptr)
            for (int64_t i = 0; i < size; ++i) square[at + i] += strip[i] * strip[i];
    }
}
