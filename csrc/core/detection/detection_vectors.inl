// Vectors of the width that the including file names, and the three types that features come in.
// The including file defines vector_bytes, vectors_in_pass, and widen_half, narrow_half for one vector.

typedef float FloatVector __attribute__((vector_size(vector_bytes)));
typedef double DoubleVector __attribute__((vector_size(vector_bytes)));
typedef std::uint32_t BitsVector __attribute__((vector_size(vector_bytes)));
typedef std::uint16_t HalfBitsVector __attribute__((vector_size(vector_bytes / 2)));

template <class Real>
struct VectorOf;
template <>
struct VectorOf<float> {
    using Type = FloatVector;
};
template <>
struct VectorOf<double> {
    using Type = DoubleVector;
};

template <class Vector, class Value>
inline Vector load_vector(const Value* from) {
    Vector result;
    std::memcpy(&result, from, sizeof result);
    return result;
}
template <class Vector, class Value>
inline void store_vector(Value* to, Vector values) {
    std::memcpy(to, &values, sizeof values);
}

struct Float32 {
    using Element = float;
    using Real = float;
    using Vector = FloatVector;
    static Vector load(const Element* from) { return load_vector<Vector>(from); }
    static void store(Element* to, Vector values) { store_vector(to, values); }
};

struct Float64 {
    using Element = double;
    using Real = double;
    using Vector = DoubleVector;
    static Vector load(const Element* from) { return load_vector<Vector>(from); }
    static void store(Element* to, Vector values) { store_vector(to, values); }
};

struct Float16 {
    using Element = std::uint16_t;
    using Real = float;
    using Vector = FloatVector;
    static Vector load(const Element* from) { return widen_half(from); }
    static void store(Element* to, Vector values) { narrow_half(to, values); }
};

struct BFloat16 {
    using Element = std::uint16_t;
    using Real = float;
    using Vector = FloatVector;
    static Vector load(const Element* from) {
        const auto halves = load_vector<HalfBitsVector>(from);
        return reinterpret_cast<Vector>(__builtin_convertvector(halves, BitsVector) << 16);
    }
    static void store(Element* to, Vector values) {
        const BitsVector bits = reinterpret_cast<BitsVector>(values);
        const BitsVector rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        const BitsVector quiet_nan = BitsVector{} + 0x7fc0;
        const BitsVector chosen = values == values ? rounded : quiet_nan;
        store_vector(to, __builtin_convertvector(chosen, HalfBitsVector));
    }
};

template <class Type>
constexpr int lanes = static_cast<int>(sizeof(typename Type::Vector) / sizeof(typename Type::Real));

// Fewer values than a vector has: what is missing is zero.
template <class Type>
inline typename Type::Vector load_some(const typename Type::Element* from, int count) {
    typename Type::Element padded[lanes<Type>] = {};
    std::memcpy(padded, from, static_cast<std::size_t>(count) * sizeof(typename Type::Element));
    return Type::load(padded);
}

template <class Type>
void narrow_all(const float* from, void* to, std::int64_t count) {
    auto* out = static_cast<typename Type::Element*>(to);
    std::int64_t i = 0;
    for (; i + lanes<Type> <= count; i += lanes<Type>)
        Type::store(out + i, load_vector<typename Type::Vector>(from + i));
    if (i == count) return;
    const auto rest = static_cast<std::size_t>(count - i);
    float values[lanes<Type>] = {};
    typename Type::Element narrowed[lanes<Type>];
    std::memcpy(values, from + i, rest * sizeof(float));
    Type::store(narrowed, load_vector<typename Type::Vector>(values));
    std::memcpy(out + i, narrowed, rest * sizeof(typename Type::Element));
}

template <class Type>
inline void widen_all(const typename Type::Element* from, typename Type::Real* to, std::int64_t count) {
    std::int64_t i = 0;
    for (; i + lanes<Type> <= count; i += lanes<Type>) store_vector(to + i, Type::load(from + i));
    if (i == count) return;
    const auto values = load_some<Type>(from + i, static_cast<int>(count - i));
    std::memcpy(to + i, &values, static_cast<std::size_t>(count - i) * sizeof(typename Type::Real));
}
