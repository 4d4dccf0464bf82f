// float16 and bfloat16 by arithmetic on their bits, one value at a time, as processors with instructions for
// them compute it. In an unnamed namespace, as native.h says.
#pragma once

#include <bit>
#include <cstdint>

namespace hpcai500 {
namespace {

inline float from_float16(std::uint16_t half) {
    const std::uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
    constexpr std::uint32_t infinity = 0x7c00, normal_from = 0x0400, quiet = 0x00400000;
    if (magnitude > infinity)
        return std::bit_cast<float>(sign | 0x7f800000u | quiet | (magnitude & 0x3ffu) << 13);
    if (magnitude == infinity) return std::bit_cast<float>(sign | 0x7f800000u);
    if (magnitude >= normal_from) return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
    const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(subnormal));
}

// Round to nearest even, with subnormal results and overflow to infinity.
inline std::uint16_t to_float16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    constexpr std::uint32_t nan_above = 0x7f800000;
    constexpr std::uint32_t infinity_from = 0x477ff000;  // 65520: halfway from the largest half to infinity
    constexpr std::uint32_t normal_from = 0x38800000;    // 2^-14
    if (magnitude > nan_above) return static_cast<std::uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= infinity_from) return static_cast<std::uint16_t>(sign | 0x7c00);
    if (magnitude < normal_from) {
        // Adding 0.5 leaves the subnormal half's bits, rounded by the addition itself, at the mantissa's end.
        const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
        return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
    }
    const std::uint32_t odd = (magnitude >> 13) & 1;
    return static_cast<std::uint16_t>(sign | ((magnitude - (112u << 23) + 0xfff + odd) >> 13));
}

// The addition would carry some NaN into infinity, so they keep their upper half and become quiet.
inline std::uint16_t to_bfloat16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    return static_cast<std::uint16_t>((nan ? bits | 0x00400000 : bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace
}  // namespace hpcai500
