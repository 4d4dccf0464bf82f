// float16 and bfloat16 by arithmetic on their bits, for processors without instructions for them, with the
// same results. float16 is in the lower half of 32 bits; Float and Int are float and std::int32_t, or vectors
// of them, so nothing branches. In an unnamed namespace, as native.h says.
#pragma once

#include <bit>
#include <cstdint>

namespace hpcai500 {
namespace {

// The lowest bit of floats from 0.5 to 1 is worth what the lowest bit of a subnormal half is.
inline constexpr std::int32_t bits_of_half_of_one = 0x3f000000;
// From an exponent of a half to one of a float.
inline constexpr std::int32_t exponent_step = 112 << 23;

template <class Float, class Int>
inline Float from_float16(Int half) {
    const Int sign = (half & 0x8000) << 16, magnitude = half & 0x7fff;
    const Int normal = (magnitude << 13) + exponent_step;
    const Int subnormal = std::bit_cast<Int>(std::bit_cast<Float>(magnitude + bits_of_half_of_one) - 0.5f);
    // Infinity, or NaN, which becomes quiet.
    const Int quiet = magnitude > 0x7c00 ? Int{} + 0x00400000 : Int{};
    const Int special = (normal + exponent_step) | quiet;
    return std::bit_cast<Float>(sign | (magnitude < 0x0400   ? subnormal
                                        : magnitude < 0x7c00 ? normal
                                                             : special));
}

// Round to nearest even, with subnormal results and overflow to infinity.
template <class Int, class Float>
inline Int to_float16(Float value) {
    constexpr std::int32_t infinity = 0x7f800000, normal_from = 0x38800000;  // 2^-14
    constexpr std::int32_t infinite_from = 0x477ff000;  // 65520: halfway from the largest half to infinity
    const Int bits = std::bit_cast<Int>(value);
    const Int sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    const Int odd = (magnitude >> 13) & 1;
    const Int normal = (magnitude - exponent_step + 0xfff + odd) >> 13;
    // The addition itself rounds.
    const Int subnormal = std::bit_cast<Int>(std::bit_cast<Float>(magnitude) + 0.5f) - bits_of_half_of_one;
    const Int nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
    const Int special = magnitude > infinity ? nan : Int{} + 0x7c00;
    return sign | (magnitude < normal_from ? subnormal : magnitude < infinite_from ? normal : special);
}

// The addition would carry some NaN into infinity, so they keep their upper half and become quiet.
inline std::uint16_t to_bfloat16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    return static_cast<std::uint16_t>((nan ? bits | 0x00400000 : bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace
}  // namespace hpcai500
