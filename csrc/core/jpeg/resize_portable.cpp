// Plain C++ for every processor; loops of 16 that a compiler turns into whatever vectors the target has.
#include <cmath>
#include <cstring>

#include "resize_kernel.h"

namespace hpcai500 {
namespace {

struct alignas(64) Vec16 {
    float lane[16];
};

inline Vec16 zero() {
    return {};
}
inline Vec16 load(const float* from) {
    Vec16 result;
    std::memcpy(result.lane, from, sizeof result.lane);
    return result;
}
inline void store(float* to, Vec16 values) {
    std::memcpy(to, values.lane, sizeof values.lane);
}
inline Vec16 repeat(float value) {
    Vec16 result;
    for (float& lane : result.lane) lane = value;
    return result;
}
inline Vec16 add(Vec16 one, Vec16 other) {
    for (int i = 0; i < 16; ++i) one.lane[i] += other.lane[i];
    return one;
}
inline Vec16 clamp(Vec16 values, Vec16 lowest, Vec16 highest) {
    for (int i = 0; i < 16; ++i) {
        const float raised = values.lane[i] > lowest.lane[i] ? values.lane[i] : lowest.lane[i];
        values.lane[i] = raised < highest.lane[i] ? raised : highest.lane[i];
    }
    return values;
}
inline Vec16 load_bytes(const std::uint8_t* from) {
    Vec16 result;
    for (int i = 0; i < 16; ++i) result.lane[i] = static_cast<float>(from[i]);
    return result;
}
inline Vec16 multiply_add(Vec16 values, float weight, Vec16 sum) {
    for (int i = 0; i < 16; ++i) sum.lane[i] += weight * values.lane[i];
    return sum;
}
inline Vec16 scale_and_shift(Vec16 values, Vec16 scale, Vec16 bias) {
    for (int i = 0; i < 16; ++i) values.lane[i] = values.lane[i] * scale.lane[i] + bias.lane[i];
    return values;
}
inline Vec16 repeat_channels(const float* channels) {
    Vec16 result;
    for (int i = 0; i < 16; ++i) result.lane[i] = i % 4 == 3 ? 0 : channels[i % 4];
    return result;
}

// Four pixels, each to the same place of its own column of the workspace.
inline void scatter_pixels(float* out, Vec16 pixels) {
    for (int pixel = 0; pixel < 4; ++pixel)
        std::memcpy(out + pixel * 16, pixels.lane + pixel * 4, 4 * sizeof(float));
}

inline void store_pixel(float* out, const Vec16& column, int row) {
    std::memcpy(out, column.lane + row * 4, 4 * sizeof(float));
}

inline void transpose(Vec16* v) {
    for (int i = 0; i < 16; ++i) {
        for (int j = i + 1; j < 16; ++j) {
            const float held = v[i].lane[j];
            v[i].lane[j] = v[j].lane[i];
            v[j].lane[i] = held;
        }
    }
}

// out: r0 g0 b0 r1 g1 b1 ... r15 g15 b15.
inline void interleave(Vec16 red, Vec16 green, Vec16 blue, Vec16* out) {
    for (int i = 0; i < 48; ++i) {
        const Vec16& channel = i % 3 == 0 ? red : i % 3 == 1 ? green : blue;
        out[i / 16].lane[i % 16] = channel.lane[i / 3];
    }
}

inline std::uint32_t bits_of(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Round to nearest even, with subnormal results and overflow to infinity, as the F16C instruction does.
inline std::uint16_t to_float16(float value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    constexpr std::uint32_t infinity_from =
        0x477ff000;                                    // 65520: halfway between the largest half and infinity
    constexpr std::uint32_t normal_from = 0x38800000;  // 2^-14
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

inline void store_float32(float* out, Vec16 values, bool) {
    std::memcpy(out, values.lane, sizeof values.lane);
}
inline void store_float16(std::uint16_t* out, Vec16 values) {
    for (int i = 0; i < 16; ++i) out[i] = to_float16(values.lane[i]);
}
inline void store_bfloat16(std::uint16_t* out, Vec16 values) {
    for (int i = 0; i < 16; ++i) {
        const std::uint32_t bits = bits_of(values.lane[i]);
        out[i] = static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    }
}
inline void store_uint8(std::uint8_t* out, Vec16 values) {
    for (int i = 0; i < 16; ++i) {
        const float level = std::nearbyint(values.lane[i]);
        out[i] = static_cast<std::uint8_t>(level < 0 ? 0 : level > 255 ? 255 : level);
    }
}

inline void fence() {}

#include "resize_kernel.inl"
// Behind it, whose types it uses.
#include "planar_kernel.inl"

}  // namespace

const ResizeKernel portable_kernel = HPCAI500_RESIZE_KERNEL;

}  // namespace hpcai500
