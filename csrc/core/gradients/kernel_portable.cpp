// Plain C++ for every processor; loops of 16 that a compiler turns into whatever vectors the target has.
#include <bit>
#include <cstring>

#include "compression_kernel.h"
#include "quantised_layout.h"

namespace hpcai500 {
namespace {

struct alignas(64) Vec16 {
    float lane[16];
};
struct alignas(64) Codes16 {
    std::int32_t lane[16];
};
struct alignas(64) Peak16 {
    std::uint32_t lane[16];
};
struct alignas(64) Squares32 {
    double lane[32];
};

#include "short_floats.inl"

inline Vec16 load(const float* from) {
    Vec16 result;
    std::memcpy(result.lane, from, sizeof result.lane);
    return result;
}
inline Vec16 load_float16(const std::uint16_t* from) {
    Vec16 result;
    for (int i = 0; i < 16; ++i) result.lane[i] = from_float16(from[i]);
    return result;
}
inline Vec16 load_bfloat16(const std::uint16_t* from) {
    Vec16 result;
    for (int i = 0; i < 16; ++i)
        result.lane[i] = std::bit_cast<float>(static_cast<std::uint32_t>(from[i]) << 16);
    return result;
}
inline Vec16 load_codes(const std::uint8_t* from) {
    Vec16 result;
    for (int i = 0; i < 16; ++i) result.lane[i] = static_cast<float>(static_cast<std::int8_t>(from[i]));
    return result;
}
inline Vec16 multiply(Vec16 values, float factor) {
    for (int i = 0; i < 16; ++i) values.lane[i] *= factor;
    return values;
}
inline Vec16 add(Vec16 a, const Vec16& b) {
    for (int i = 0; i < 16; ++i) a.lane[i] += b.lane[i];
    return a;
}
inline Vec16 subtract(Vec16 a, const Vec16& b) {
    for (int i = 0; i < 16; ++i) a.lane[i] -= b.lane[i];
    return a;
}

inline void store(float* out, const Vec16& values, bool) {
    std::memcpy(out, values.lane, sizeof values.lane);
}
inline void store_float16(std::uint16_t* out, const Vec16& low, const Vec16& high, bool) {
    for (int i = 0; i < 16; ++i) out[i] = to_float16(low.lane[i]);
    for (int i = 0; i < 16; ++i) out[16 + i] = to_float16(high.lane[i]);
}
inline void store_bfloat16(std::uint16_t* out, const Vec16& low, const Vec16& high, bool) {
    for (int i = 0; i < 16; ++i) out[i] = to_bfloat16(low.lane[i]);
    for (int i = 0; i < 16; ++i) out[16 + i] = to_bfloat16(high.lane[i]);
}

// 1.5 * 2^23 leaves no bits behind the point: the addition itself rounds to nearest even.
inline Codes16 nearest(const Vec16& values) {
    constexpr float shift = 12582912.0f;
    Codes16 codes;
    for (int i = 0; i < 16; ++i)
        codes.lane[i] =
            std::bit_cast<std::int32_t>(values.lane[i] + shift) - std::bit_cast<std::int32_t>(shift);
    return codes;
}
inline Vec16 widen(const Codes16& codes) {
    Vec16 result;
    for (int i = 0; i < 16; ++i) result.lane[i] = static_cast<float>(codes.lane[i]);
    return result;
}
inline void store_codes(std::uint8_t* out, const Codes16& codes) {
    for (int i = 0; i < 16; ++i) out[i] = static_cast<std::uint8_t>(codes.lane[i]);
}

inline Peak16 peak_of(Peak16 peak, const Vec16& values) {
    for (int i = 0; i < 16; ++i) {
        const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(values.lane[i]) & 0x7fffffff;
        peak.lane[i] = magnitude > peak.lane[i] ? magnitude : peak.lane[i];
    }
    return peak;
}
inline std::uint32_t largest(const Peak16& peak) {
    std::uint32_t result = 0;
    for (const std::uint32_t bits : peak.lane) result = bits > result ? bits : result;
    return result;
}

// The square of a float is exact in double: this is what a fused sum gives.
template <class Pair>
inline void add_squares(Squares32& squares, const Pair& values) {
    for (int i = 0; i < 16; ++i)
        squares.lane[i] += static_cast<double>(values.low.lane[i]) * static_cast<double>(values.low.lane[i]);
    for (int i = 0; i < 16; ++i)
        squares.lane[16 + i] +=
            static_cast<double>(values.high.lane[i]) * static_cast<double>(values.high.lane[i]);
}
inline void store_lanes(double* out, const Squares32& squares) {
    std::memcpy(out, squares.lane, sizeof squares.lane);
}

inline void fence() {}

#include "compression_kernel.inl"

}  // namespace

const CompressionKernel portable_compression_kernel = HPCAI500_COMPRESSION_KERNEL;

}  // namespace hpcai500
