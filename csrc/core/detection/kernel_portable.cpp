// Vectors of 16 bytes, which every 64-bit processor has; half precision by arithmetic on its bits.
#include <cstring>

#include "detection_kernel.h"

namespace hpcai500 {
namespace {

constexpr int vector_bytes = 16;
constexpr int vectors_in_pass = 8;

typedef float HalfLanes __attribute__((vector_size(vector_bytes)));

inline std::uint32_t bits_of(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline float float_of(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline float from_float16(std::uint16_t half) {
    const std::uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
    constexpr std::uint32_t infinity_from = 0x7c00, normal_from = 0x0400;
    if (magnitude >= infinity_from) return float_of(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude >= normal_from) return float_of(sign | ((magnitude << 13) + (112u << 23)));
    const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
    return float_of(sign | bits_of(subnormal));
}

// Round to nearest even, with subnormal results and overflow to infinity, as the F16C instruction does.
inline std::uint16_t to_float16(float value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    constexpr std::uint32_t nan_above = 0x7f800000;
    constexpr std::uint32_t infinity_from = 0x477ff000;  // 65520: halfway from the largest half to infinity
    constexpr std::uint32_t normal_from = 0x38800000;    // 2^-14
    if (magnitude > nan_above) return static_cast<std::uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= infinity_from) return static_cast<std::uint16_t>(sign | 0x7c00);
    if (magnitude < normal_from) {
        // Adding 0.5 leaves the subnormal half's bits, rounded by the addition itself, at the mantissa's end.
        return static_cast<std::uint16_t>(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
    }
    const std::uint32_t odd = (magnitude >> 13) & 1;
    return static_cast<std::uint16_t>(sign | ((magnitude - (112u << 23) + 0xfff + odd) >> 13));
}

inline HalfLanes widen_half(const std::uint16_t* from) {
    HalfLanes result{};
    for (int i = 0; i < 4; ++i) result[i] = from_float16(from[i]);
    return result;
}
inline void narrow_half(std::uint16_t* to, HalfLanes values) {
    for (int i = 0; i < 4; ++i) to[i] = to_float16(values[i]);
}

#include "detection_kernel.inl"

}  // namespace

const DetectionKernel portable_detection_kernel = HPCAI500_DETECTION_KERNEL("portable");

}  // namespace hpcai500
