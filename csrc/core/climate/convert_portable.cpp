// Plain C++ for every processor; loops of 16 that a compiler turns into whatever vectors the target has.
#include <cstdint>
#include <cstring>

#include "convert_kernel.h"

namespace hpcai500 {
namespace {

struct alignas(64) Vec16 {
    float lane[16];
};

inline std::uint32_t bits_of(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline Vec16 load_values(const unsigned char* from) {
    Vec16 result;
    std::memcpy(result.lane, from, sizeof result.lane);
    return result;
}
inline Vec16 load_planes(const unsigned char* from, long stride) {
    std::uint32_t bits[16];
    for (int i = 0; i < 16; ++i)
        bits[i] = static_cast<std::uint32_t>(from[i]) | static_cast<std::uint32_t>(from[stride + i]) << 8 |
                  static_cast<std::uint32_t>(from[2 * stride + i]) << 16 |
                  static_cast<std::uint32_t>(from[3 * stride + i]) << 24;
    Vec16 result;
    std::memcpy(result.lane, bits, sizeof result.lane);
    return result;
}

// value * scale + bias, rounded once, as the fused instruction does: the product is exact in double, the sum
// is rounded to odd there (its last bit remembers what was lost), and rounding that to float gives what
// rounding the exact sum would (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved
// algorithms using rounding to odd", IEEE Transactions on Computers, 2008).
inline float fused(float value, float scale, float bias) {
    const double product = static_cast<double>(value) * static_cast<double>(scale);
    const double summand = static_cast<double>(bias);
    const double sum = product + summand;
    const double rest = sum - product;
    const double lost = (product - (sum - rest)) + (summand - rest);
    std::uint64_t bits;
    std::memcpy(&bits, &sum, sizeof bits);
    // Comparisons that are false for NaN: infinite sums stay as they are.
    const std::uint64_t even = ~bits & 1;
    const bool outwards = (lost > 0) == (sum > 0);
    const bool inexact = lost > 0 || lost < 0;
    bits = inexact ? (outwards ? bits + even : bits - even) : bits;
    double odd;
    std::memcpy(&odd, &bits, sizeof odd);
    return static_cast<float>(odd);
}
inline Vec16 scale_and_shift(Vec16 values, float scale, float bias) {
    for (int i = 0; i < 16; ++i) values.lane[i] = fused(values.lane[i], scale, bias);
    return values;
}

// Round to nearest even, with subnormal results and overflow to infinity, as the F16C instruction does.
inline std::uint16_t to_float16(float value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    constexpr std::uint32_t infinity_from =
        0x477ff000;                                    // 65520: halfway between the largest half and infinity
    constexpr std::uint32_t normal_from = 0x38800000;  // 2^-14
    constexpr std::uint32_t infinity = 0x7f800000;
    if (magnitude > infinity) return static_cast<std::uint16_t>(sign | 0x7e00 | ((magnitude >> 13) & 0x1ff));
    if (magnitude >= infinity_from) return static_cast<std::uint16_t>(sign | 0x7c00);
    if (magnitude < normal_from) {
        // Adding 0.5 leaves the subnormal half's bits, rounded by the addition itself, at the mantissa's end.
        float shifted;
        std::memcpy(&shifted, &magnitude, sizeof shifted);
        return static_cast<std::uint16_t>(sign | (bits_of(shifted + 0.5f) - bits_of(0.5f)));
    }
    const std::uint32_t odd = (magnitude >> 13) & 1;
    return static_cast<std::uint16_t>(sign | ((magnitude - (112u << 23) + 0xfff + odd) >> 13));
}
inline std::uint16_t to_bfloat16(float value) {
    const std::uint32_t bits = bits_of(value);
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    return static_cast<std::uint16_t>((nan ? bits | 0x00400000 : bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline void store_float32(unsigned char* out, const Vec16& values, bool) {
    std::memcpy(out, values.lane, sizeof values.lane);
}
template <class Convert>
inline void store_short(unsigned char* out, const Vec16& low, const Vec16& high, Convert convert) {
    std::uint16_t line[32];
    for (int i = 0; i < 16; ++i) line[i] = convert(low.lane[i]);
    for (int i = 0; i < 16; ++i) line[16 + i] = convert(high.lane[i]);
    std::memcpy(out, line, sizeof line);
}
inline void store_float16(unsigned char* out, const Vec16& low, const Vec16& high, bool) {
    store_short(out, low, high, [](float value) { return to_float16(value); });
}
inline void store_bfloat16(unsigned char* out, const Vec16& low, const Vec16& high, bool) {
    store_short(out, low, high, [](float value) { return to_bfloat16(value); });
}

inline void fence() {}

#include "convert_kernel.inl"

}  // namespace

const ConvertKernel portable_convert_kernel = HPCAI500_CONVERT_KERNEL;

}  // namespace hpcai500
