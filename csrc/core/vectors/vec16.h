// What kernels compute with, the same for every instruction set and written once, on the types of native.h
// and what the header of the instruction set has added to them:
//
//     Vec16       16 floats: load, store, + - *, multiply_add, clamp, transpose, interleave, ...
//     Vec32       two of them, which a cache line of a 16-bit type becomes
//     Ints16      16 whole numbers, which Vec16 is rounded to or made of
//     Squares32   sums of squares in double
//     Float32, Float16, BFloat16, Float64, UInt8     types in memory: load widens to float, store rounds
//
// Results are the same to the bit on every instruction set, but of the multiply_add that portable.h rounds
// twice. Nothing needs to be aligned, but what is stored past the cache.

namespace hpcai500 {
namespace {

HPCAI500_INLINE Vec16 load(const float* from) {
    Vec16 result;
    for (int i = 0; i < parts; ++i) result.part[i] = load_vector<Floats>(from + i * lanes);
    return result;
}
/// A line: 64 bytes. With `past_cache`, `to` is a multiple of 64, and the stores need a fence().
HPCAI500_INLINE void store(void* to, const Vec16& values, bool past_cache) {
    char* const bytes = static_cast<char*>(to);
    for (int i = 0; i < parts; ++i) {
        if (past_cache)
            store_past_cache(bytes + i * vector_bytes, values.part[i]);
        else
            store_vector(bytes + i * vector_bytes, values.part[i]);
    }
}
HPCAI500_INLINE void store(float* to, const Vec16& values) {
    store(to, values, false);
}
HPCAI500_INLINE Vec16 repeat(float value) {
    Vec16 result;
    for (int i = 0; i < parts; ++i) result.part[i] = broadcast(value);
    return result;
}

/// The same four values four times.
HPCAI500_INLINE Vec16 repeat_quarter(const float* from) {
    Vec16 result;
    for (int i = 0; i < parts; ++i) result.part[i] = broadcast_quarter(from);
    return result;
}

HPCAI500_INLINE Vec16 operator+(Vec16 a, const Vec16& b) {
    for (int i = 0; i < parts; ++i) a.part[i] += b.part[i];
    return a;
}
HPCAI500_INLINE Vec16 operator-(Vec16 a, const Vec16& b) {
    for (int i = 0; i < parts; ++i) a.part[i] -= b.part[i];
    return a;
}
HPCAI500_INLINE Vec16 operator*(Vec16 a, float b) {
    for (int i = 0; i < parts; ++i) a.part[i] *= b;
    return a;
}
HPCAI500_INLINE Vec32 operator+(const Vec32& a, const Vec32& b) {
    return {{a.half[0] + b.half[0], a.half[1] + b.half[1]}};
}
HPCAI500_INLINE Vec32 operator*(const Vec32& a, float b) {
    return {{a.half[0] * b, a.half[1] * b}};
}
/// a * b + sum, rounded once where the processor does that in one operation.
HPCAI500_INLINE Vec16 multiply_add(const Vec16& a, const Vec16& b, Vec16 sum) {
    for (int i = 0; i < parts; ++i) sum.part[i] = multiply_add(a.part[i], b.part[i], sum.part[i]);
    return sum;
}
HPCAI500_INLINE Vec16 multiply_add(const Vec16& a, float b, Vec16 sum) {
    const Floats factor = broadcast(b);
    for (int i = 0; i < parts; ++i) sum.part[i] = multiply_add(a.part[i], factor, sum.part[i]);
    return sum;
}
/// The same, rounded once on every processor.
HPCAI500_INLINE Vec16 fused_multiply_add(const Vec16& a, float b, float sum) {
    Vec16 result;
    const Floats factor = broadcast(b), summand = broadcast(sum);
    for (int i = 0; i < parts; ++i) result.part[i] = fused_multiply_add(a.part[i], factor, summand);
    return result;
}
HPCAI500_INLINE Vec16 clamp(Vec16 values, float lowest, float highest) {
    const Floats low = broadcast(lowest), high = broadcast(highest);
    for (int i = 0; i < parts; ++i) values.part[i] = smaller(larger(values.part[i], low), high);
    return values;
}

/// Rounds to nearest even. Values are within 2^22.
HPCAI500_INLINE Ints16 nearest(const Vec16& values) {
    Ints16 result;
    for (int i = 0; i < parts; ++i) result.part[i] = nearest(values.part[i]);
    return result;
}
HPCAI500_INLINE Vec16 widen(const Ints16& numbers) {
    Vec16 result;
    for (int i = 0; i < parts; ++i) result.part[i] = __builtin_convertvector(numbers.part[i], Floats);
    return result;
}
/// Floats whose bytes lie in four planes, the lowest bytes first, `stride` apart.
HPCAI500_INLINE Vec16 load_planes(const std::uint8_t* from, long stride) {
    Vec16 result;
    const Ints16 first = load_bytes(from), second = load_bytes(from + stride);
    const Ints16 third = load_bytes(from + 2 * stride), last = load_bytes(from + 3 * stride);
    for (int i = 0; i < parts; ++i) {
        const Bits low = as<Bits>(first.part[i]) | as<Bits>(second.part[i]) << 8;
        const Bits high = as<Bits>(third.part[i]) << 16 | as<Bits>(last.part[i]) << 24;
        result.part[i] = as<Floats>(low | high);
    }
    return result;
}

/// The larger one of each number and the magnitude of each value, as bits.
HPCAI500_INLINE Ints16 larger_magnitude(Ints16 largest, const Vec16& values) {
    for (int i = 0; i < parts; ++i)
        largest.part[i] = larger(largest.part[i], as<Ints>(values.part[i]) & 0x7fffffff);
    return largest;
}
HPCAI500_INLINE std::uint32_t largest_of(const Ints16& numbers) {
    Ints largest = numbers.part[0];
    for (int i = 1; i < parts; ++i) largest = larger(largest, numbers.part[i]);
    return static_cast<std::uint32_t>(largest_lane(largest));
}

/// The square of a float is exact in double: whether a product is rounded before it is added cannot be seen.
HPCAI500_INLINE void add_squares(Squares32& squares, const Vec32& of) {
    for (int i = 0; i < 2 * parts; ++i) {
        const Floats values = of.part(i);
        const Doubles first = lower_half(values), second = upper_half(values);
        squares.part[2 * i] = multiply_add(first, first, squares.part[2 * i]);
        squares.part[2 * i + 1] = multiply_add(second, second, squares.part[2 * i + 1]);
    }
}
/// The sum of the 32 sums, pairwise in a fixed order, of which lane `first` of `squares` is the first.
HPCAI500_INLINE double total(const Squares32& squares, long first = 0) {
    double given[32], lane[32];
    std::memcpy(given, &squares, sizeof given);
    for (long i = 0; i < 32; ++i) lane[i] = given[(i + first) % 32];
    for (int width = 16; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
    return lane[0];
}

/// Value i of v[j] and value j of v[i] change places.
HPCAI500_INLINE void transpose(Vec16* v) {
    for (int i = 0; i < parts; ++i) {
        for (int j = i; j < parts; ++j) {
            Floats block[lanes], mirrored[lanes];
            for (int row = 0; row < lanes; ++row) {
                block[row] = v[i * lanes + row].part[j];
                mirrored[row] = v[j * lanes + row].part[i];
            }
            transpose_block(block);
            if (i != j) transpose_block(mirrored);
            for (int row = 0; row < lanes; ++row) {
                if (i != j) v[i * lanes + row].part[j] = mirrored[row];
                v[j * lanes + row].part[i] = block[row];
            }
        }
    }
}
/// out: r0 g0 b0 r1 g1 b1 ... r15 g15 b15.
HPCAI500_INLINE void interleave(const Vec16& red, const Vec16& green, const Vec16& blue, Vec16* out) {
    for (int i = 0; i < parts; ++i) {
        Floats thirds[3];
        interleave_part(red.part[i], green.part[i], blue.part[i], thirds);
        for (int k = 0; k < 3; ++k) out[(3 * i + k) / parts].part[(3 * i + k) % parts] = thirds[k];
    }
}

/// Types in memory. narrow() rounds to nearest even, store_line() stores 64 bytes of them.
template <class Value, class Register>
struct AsTheyAre {
    using Item = Value;
    using Real = Value;
    using Vector = Register;
    HPCAI500_INLINE static Vector widen(const Item* from) { return load_vector<Vector>(from); }
    HPCAI500_INLINE static void narrow(Item* to, Vector values) { store_vector(to, values); }
};
using Float32 = AsTheyAre<float, Floats>;
using Float64 = AsTheyAre<double, Doubles>;
/// What it cannot hold becomes infinite; subnormal numbers are kept, NaN stays NaN.
struct Float16 {
    using Item = std::uint16_t;
    using Real = float;
    using Vector = Floats;
    HPCAI500_INLINE static Floats widen(const Item* from) { return widen_float16(from); }
    HPCAI500_INLINE static HalfWords rounded(Floats values) { return narrow_float16(values); }
    HPCAI500_INLINE static Words rounded(Floats low, Floats high) {
        return joined(rounded(low), rounded(high));
    }
    HPCAI500_INLINE static void narrow(Item* to, Floats values) { store_words(to, rounded(values)); }
};
/// By integer arithmetic: AVX512-BF16's instruction would flush subnormal numbers to zero. The addition would
/// carry some NaN into infinity, so they keep their upper half and become quiet.
struct BFloat16 {
    using Item = std::uint16_t;
    using Real = float;
    using Vector = Floats;
    HPCAI500_INLINE static Floats widen(const Item* from) { return as<Floats>(widen_words(from) << 16); }
    // The upper halves of what these give are the rounded values.
    HPCAI500_INLINE static Bits round_up(Floats values) {
        return as<Bits>(values) + 0x7fff + (as<Bits>(values) >> 16 & 1);
    }
    HPCAI500_INLINE static Bits round_up_or_keep(Floats values) {
        return values == values ? round_up(values) : as<Bits>(values) | 0x00400000;
    }
    HPCAI500_INLINE static Words rounded(Floats low, Floats high) {
        return upper_words(round_up_or_keep(low), round_up_or_keep(high));
    }
    HPCAI500_INLINE static void narrow(Item* to, Floats values) {
        store_words(to, upper_words(round_up_or_keep(values)));
    }
};
struct UInt8 {
    using Item = std::uint8_t;
};

template <class Type>
HPCAI500_INLINE Vec16 load(const typename Type::Item* from) {
    Vec16 result;
    for (int i = 0; i < parts; ++i) result.part[i] = Type::widen(from + i * lanes);
    return result;
}
template <class Type>
HPCAI500_INLINE void store(typename Type::Item* to, const Vec16& values) {
    for (int i = 0; i < parts; ++i) Type::narrow(to + i * lanes, values.part[i]);
}
/// Values are within 2^22.
template <>
HPCAI500_INLINE void store<UInt8>(std::uint8_t* to, const Vec16& values) {
    store_bytes(to, nearest(values));
}

template <class Type>
HPCAI500_INLINE Vec32 load_two(const typename Type::Item* from) {
    return {{load<Type>(from), load<Type>(from + 16)}};
}
/// With `past_cache`, as store(void*, ...) above.
template <class Type>
HPCAI500_INLINE void store_two(void* to, const Vec32& values, bool past_cache) {
    if constexpr (sizeof(typename Type::Item) == 4) {
        store(to, values.half[0], past_cache);
        store(static_cast<char*>(to) + 64, values.half[1], past_cache);
    } else {
        Vec16 line;
        for (int i = 0; i < parts; ++i)
            line.part[i] = as<Floats>(Type::rounded(values.part(2 * i), values.part(2 * i + 1)));
        store(to, line, past_cache);
    }
}

}  // namespace
}  // namespace hpcai500
