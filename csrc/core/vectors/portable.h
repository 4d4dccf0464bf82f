// Any 64-bit processor: 16-byte vectors, which the compiler makes of what there is, and no other
// instructions.
#pragma once

#include <limits>

namespace hpcai500 {
constexpr int vector_bytes = 16;
}

#include "native.h"
#include "short_floats.h"

namespace hpcai500 {
namespace {

HPCAI500_INLINE Floats multiply_add(Floats a, Floats b, Floats sum) {
    return a * b + sum;
}
HPCAI500_INLINE Doubles multiply_add(Doubles a, Doubles b, Doubles sum) {
    return a * b + sum;
}
// 1.5 * 2^23 leaves no bits behind the point: the addition itself rounds to nearest even.
HPCAI500_INLINE Ints nearest(Floats values) {
    constexpr float shift = 12582912.0f;
    return as<Ints>(values + shift) - std::bit_cast<std::int32_t>(shift);
}

typedef float HalfFloats __attribute__((vector_size(vector_bytes / 2)));

HPCAI500_INLINE Doubles lower_half(Floats values) {
    return __builtin_convertvector(load_vector<HalfFloats>(&values), Doubles);
}
HPCAI500_INLINE Doubles upper_half(Floats values) {
    return __builtin_convertvector(load_vector<HalfFloats>(reinterpret_cast<const char*>(&values) + 8),
                                   Doubles);
}
template <class Byte>
HPCAI500_INLINE Ints16 load_bytes(const Byte* from) {
    std::int32_t numbers[16];
    for (int i = 0; i < 16; ++i) numbers[i] = from[i];
    Ints16 result;
    std::memcpy(&result, numbers, sizeof result);
    return result;
}
HPCAI500_INLINE std::int32_t largest_lane(Ints numbers) {
    std::int32_t largest = numbers[0];
    for (int i = 1; i < lanes; ++i) largest = numbers[i] > largest ? numbers[i] : largest;
    return largest;
}
HPCAI500_INLINE Bits widen_words(const std::uint16_t* from) {
    return __builtin_convertvector(load_vector<HalfWords>(from), Bits);
}
HPCAI500_INLINE Floats widen_float16(const std::uint16_t* from) {
    return from_float16<Floats>(as<Ints>(widen_words(from)));
}
HPCAI500_INLINE void store_words(std::uint16_t* to, HalfWords words) {
    store_vector(to, words);
}
HPCAI500_INLINE Words joined(HalfWords low, HalfWords high) {
    const HalfWords both[] = {low, high};
    return load_vector<Words>(both);
}
HPCAI500_INLINE HalfWords upper_words(Bits numbers) {
    return __builtin_convertvector(numbers >> 16, HalfWords);
}
HPCAI500_INLINE Words upper_words(Bits low, Bits high) {
    return joined(upper_words(low), upper_words(high));
}
HPCAI500_INLINE HalfWords narrow_float16(Floats values) {
    return upper_words(as<Bits>(to_float16<Ints>(values)) << 16);
}
/// Cut to what the bytes can hold.
template <class Byte>
HPCAI500_INLINE void store_bytes(Byte* to, const Ints16& numbers) {
    constexpr std::int32_t least = std::numeric_limits<Byte>::min(), most = std::numeric_limits<Byte>::max();
    std::int32_t number[16];
    for (int i = 0; i < parts; ++i)
        store_vector(number + i * lanes, smaller(larger(numbers.part[i], Ints{} + least), Ints{} + most));
    for (int i = 0; i < 16; ++i) to[i] = static_cast<Byte>(number[i]);
}

// The product is exact in double, the sum is rounded to odd there (its last bit remembers what was lost), and
// rounding that to float gives what rounding the exact sum would (Boldo and Melquiond, "Emulation of FMA and
// correctly rounded sums: proved algorithms using rounding to odd", IEEE Transactions on Computers, 2008).
HPCAI500_INLINE float fused_multiply_add(float a, float b, float c) {
    const double product = static_cast<double>(a) * static_cast<double>(b);
    const double summand = static_cast<double>(c);
    const double sum = product + summand;
    const double rest = sum - product;
    const double lost = (product - (sum - rest)) + (summand - rest);
    const auto bits = std::bit_cast<std::uint64_t>(sum);
    // Comparisons that are false for NaN: infinite sums stay as they are.
    const std::uint64_t even = ~bits & 1;
    const bool outwards = (lost > 0) == (sum > 0);
    const bool inexact = lost > 0 || lost < 0;
    return static_cast<float>(std::bit_cast<double>(inexact ? (outwards ? bits + even : bits - even) : bits));
}
HPCAI500_INLINE Floats fused_multiply_add(Floats a, Floats b, Floats sum) {
    for (int i = 0; i < lanes; ++i) sum[i] = fused_multiply_add(a[i], b[i], sum[i]);
    return sum;
}

HPCAI500_INLINE void store_past_cache(void* to, Floats values) {
    store_vector(static_cast<float*>(to), values);
}
HPCAI500_INLINE void fence() {}

HPCAI500_INLINE Floats broadcast_quarter(const float* from) {
    return load_vector<Floats>(from);
}
/// Quarter `i` of 16 values: a pixel of four.
template <int i>
HPCAI500_INLINE void store_quarter(float* to, const Vec16& values) {
    store_vector(to, values.part[i]);
}

/// 4 x 4 values.
HPCAI500_INLINE void transpose_block(Floats* v) {
    const Floats rows[] = {v[0], v[1], v[2], v[3]};
    for (int i = 0; i < 4; ++i) v[i] = Floats{rows[0][i], rows[1][i], rows[2][i], rows[3][i]};
}

/// Four pixels: r0 g0 b0 ... r3 g3 b3.
HPCAI500_INLINE void interleave_part(Floats red, Floats green, Floats blue, Floats* out) {
    out[0] = Floats{red[0], green[0], blue[0], red[1]};
    out[1] = Floats{green[1], blue[1], red[2], green[2]};
    out[2] = Floats{blue[2], red[3], green[3], blue[3]};
}

}  // namespace
}  // namespace hpcai500

#include "vec16.h"
