// Stands in for CUDA's header of this name: float16 by its bits, rounded to nearest even.
#pragma once

#include <math.h>

#include <bit>
#include <cstdint>

namespace hpcai500::cuda_on_cpu {

inline float half_value(std::uint16_t bits) {
    const unsigned sign = static_cast<unsigned>(bits & 0x8000u) << 16, exponent = bits >> 10 & 0x1fu;
    const unsigned fraction = bits & 0x3ffu;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
    if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
    const float magnitude = ldexpf(static_cast<float>(fraction), -24);
    return sign != 0 ? -magnitude : magnitude;
}

/// As the device does it: every NaN becomes 0x7fff.
inline std::uint16_t half_bits(float value) {
    const unsigned bits = std::bit_cast<unsigned>(value), sign = bits >> 16 & 0x8000u;
    const unsigned magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fffu;
    // From halfway between the largest number and what would come next.
    if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
    if (magnitude >= 0x38800000u) {
        const unsigned rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
        return static_cast<std::uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
    }
    // A multiple of the smallest subnormal number; the product is exact.
    const float multiple = nearbyintf(ldexpf(std::bit_cast<float>(magnitude), 24));
    return static_cast<std::uint16_t>(sign | static_cast<unsigned>(multiple));
}

}  // namespace hpcai500::cuda_on_cpu

struct __half {
    std::uint16_t bits;
    __half() = default;
    __half(float value) : bits(hpcai500::cuda_on_cpu::half_bits(value)) {}
    operator float() const { return hpcai500::cuda_on_cpu::half_value(bits); }
};
using half = __half;

inline __half __float2half_rn(float value) {
    return __half(value);
}
inline float __half2float(__half value) {
    return static_cast<float>(value);
}
inline std::uint16_t __half_as_ushort(__half value) {
    return value.bits;
}
inline __half __ushort_as_half(std::uint16_t bits) {
    return std::bit_cast<__half>(bits);
}
