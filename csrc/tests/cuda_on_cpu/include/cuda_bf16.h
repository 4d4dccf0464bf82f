// Stands in for CUDA's header of this name: bfloat16 by its bits, rounded to nearest even.
#pragma once

#include <bit>
#include <cstdint>

namespace hpcai500::cuda_on_cpu {

/// As the device does it: every NaN becomes 0x7fff.
inline std::uint16_t bfloat16_bits(float value) {
    const unsigned bits = std::bit_cast<unsigned>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
    return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace hpcai500::cuda_on_cpu

struct __nv_bfloat16 {
    std::uint16_t bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float value) : bits(hpcai500::cuda_on_cpu::bfloat16_bits(value)) {}
    operator float() const { return std::bit_cast<float>(static_cast<unsigned>(bits) << 16); }
};

inline float __bfloat162float(__nv_bfloat16 value) {
    return static_cast<float>(value);
}
