// Sixteen numbers in registers of any width. A vector type of the compiler's that is wider than the registers lives in memory, and each
// operation loads and stores all of it: so where registers hold fewer, sixteen are two halves, each a vector or two halves again.

typedef float F4 __attribute__((vector_size(16)));
typedef float F8 __attribute__((vector_size(32)));
typedef int32_t I4 __attribute__((vector_size(16)));
typedef int32_t I8 __attribute__((vector_size(32)));
typedef int8_t Codes16 __attribute__((vector_size(16)));
typedef uint8_t Lengths16 __attribute__((vector_size(16)));

template <typename V>
inline void get(const void* from, V& to) { std::memcpy(&to, from, sizeof(V)); }
template <typename V>
inline void put(void* to, const V& from) { std::memcpy(to, &from, sizeof(V)); }
template <typename V>
inline V larger(const V& a, const V& b) { return a > b ? a : b; }
template <typename V>
inline V smaller(const V& a, const V& b) { return a < b ? a : b; }
// -inf in place of what reaches `edge`.
template <typename V>
inline V below(const V& a, float edge) { return a >= edge ? V{} - __builtin_inff() : a; }

template <typename H>
struct Two {
    H low, high;

    Two operator-() const { return {-low, -high}; }
    Two operator+(const Two& b) const { return {low + b.low, high + b.high}; }
    Two operator*(const Two& b) const { return {low * b.low, high * b.high}; }
    template <typename S>
    Two operator+(S b) const { return {low + b, high + b}; }
    template <typename S>
    Two operator*(S b) const { return {low * b, high * b}; }
    template <typename T>
    Two& operator+=(const T& b) { return *this = *this + b; }
};

template <typename H>
inline void get(const void* from, Two<H>& to) { get(from, to.low), get(static_cast<const char*>(from) + sizeof(H), to.high); }
template <typename H>
inline void put(void* to, const Two<H>& from) { put(to, from.low), put(static_cast<char*>(to) + sizeof(H), from.high); }
template <typename H>
inline Two<H> larger(const Two<H>& a, const Two<H>& b) { return {larger(a.low, b.low), larger(a.high, b.high)}; }
template <typename H>
inline Two<H> below(const Two<H>& a, float edge) { return {below(a.low, edge), below(a.high, edge)}; }

// Sums and least numbers of both halves, as often as it takes for four to be left.
inline F4 low_of(const F8& a) { return F4{a[0], a[1], a[2], a[3]}; }
inline F4 high_of(const F8& a) { return F4{a[4], a[5], a[6], a[7]}; }
inline F4 folded(const F4& a) { return a; }
inline F4 folded(const F8& a) { return low_of(a) + high_of(a); }
inline F4 least_four(const F4& a) { return a; }
inline F4 least_four(const F8& a) { return smaller(low_of(a), high_of(a)); }
template <typename H>
inline F4 folded(const Two<H>& a) { return folded(a.low + a.high); }
template <typename H>
inline F4 least_four(const Two<H>& a) { return smaller(least_four(a.low), least_four(a.high)); }

template <typename V>
inline V got(const void* from) {
    V value;
    get(from, value);
    return value;
}
