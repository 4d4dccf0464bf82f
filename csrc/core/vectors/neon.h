// NEON, which every 64-bit Arm processor has: 16-byte registers, four of them to 16 floats.
#pragma once

#include <arm_neon.h>

namespace hpcai500 {
constexpr int vector_bytes = 16;
}

#include "native.h"

namespace hpcai500 {
namespace {

HPCAI500_INLINE Floats multiply_add(Floats a, Floats b, Floats sum) {
    return vfmaq_f32(sum, a, b);
}
HPCAI500_INLINE Doubles multiply_add(Doubles a, Doubles b, Doubles sum) {
    return vfmaq_f64(sum, a, b);
}
HPCAI500_INLINE Floats fused_multiply_add(Floats a, Floats b, Floats sum) {
    return multiply_add(a, b, sum);
}
HPCAI500_INLINE Ints nearest(Floats values) {
    return vcvtnq_s32_f32(values);
}

HPCAI500_INLINE Doubles lower_half(Floats values) {
    return vcvt_f64_f32(vget_low_f32(values));
}
HPCAI500_INLINE Doubles upper_half(Floats values) {
    return vcvt_high_f64_f32(values);
}
HPCAI500_INLINE Ints16 load_bytes(const std::int8_t* from) {
    const int8x16_t bytes = vld1q_s8(from);
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
    return {{vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)),
             vmovl_high_s16(high)}};
}
HPCAI500_INLINE Ints16 load_bytes(const std::uint8_t* from) {
    const uint8x16_t bytes = vld1q_u8(from);
    const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
    return {{as<Ints>(vmovl_u16(vget_low_u16(low))), as<Ints>(vmovl_high_u16(low)),
             as<Ints>(vmovl_u16(vget_low_u16(high))), as<Ints>(vmovl_high_u16(high))}};
}
HPCAI500_INLINE std::int32_t largest_lane(Ints numbers) {
    return vmaxvq_s32(numbers);
}
HPCAI500_INLINE Bits widen_words(const std::uint16_t* from) {
    return vmovl_u16(vld1_u16(from));
}
HPCAI500_INLINE Floats widen_float16(const std::uint16_t* from) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
}
HPCAI500_INLINE HalfWords narrow_float16(Floats values) {
    return vreinterpret_u16_f16(vcvt_f16_f32(values));
}

HPCAI500_INLINE void store_words(std::uint16_t* to, HalfWords words) {
    store_vector(to, words);
}
HPCAI500_INLINE Words joined(HalfWords low, HalfWords high) {
    return vcombine_u16(low, high);
}
HPCAI500_INLINE HalfWords upper_words(Bits numbers) {
    return vshrn_n_u32(numbers, 16);
}
HPCAI500_INLINE Words upper_words(Bits low, Bits high) {
    return vuzp2q_u16(as<Words>(low), as<Words>(high));
}
/// Cut to what the bytes can hold.
HPCAI500_INLINE int16x8_t cut_to_words(Ints low, Ints high) {
    return vcombine_s16(vqmovn_s32(low), vqmovn_s32(high));
}
HPCAI500_INLINE void store_bytes(std::int8_t* to, const Ints16& numbers) {
    for (int i = 0; i < 4; i += 2)
        vst1_s8(to + 4 * i, vqmovn_s16(cut_to_words(numbers.part[i], numbers.part[i + 1])));
}
HPCAI500_INLINE void store_bytes(std::uint8_t* to, const Ints16& numbers) {
    for (int i = 0; i < 4; i += 2)
        vst1_u8(to + 4 * i, vqmovun_s16(cut_to_words(numbers.part[i], numbers.part[i + 1])));
}

/// There is no instruction for it that is worth its name: processors see by themselves that whole lines are
/// written.
HPCAI500_INLINE void store_past_cache(void* to, Floats values) {
    store_vector(static_cast<float*>(to), values);
}
HPCAI500_INLINE void fence() {}

HPCAI500_INLINE Floats broadcast_quarter(const float* from) {
    return vld1q_f32(from);
}
/// Quarter `i` of 16 values: a pixel of four.
template <int i>
HPCAI500_INLINE void store_quarter(float* to, const Vec16& values) {
    store_vector(to, values.part[i]);
}

/// 4 x 4 values.
HPCAI500_INLINE void transpose_block(Floats* v) {
    const float32x4x2_t upper = vtrnq_f32(v[0], v[1]), lower = vtrnq_f32(v[2], v[3]);
    for (int i = 0; i < 2; ++i) {
        v[i] = vcombine_f32(vget_low_f32(upper.val[i]), vget_low_f32(lower.val[i]));
        v[i + 2] = vcombine_f32(vget_high_f32(upper.val[i]), vget_high_f32(lower.val[i]));
    }
}

/// Four pixels: r0 g0 b0 ... r3 g3 b3.
HPCAI500_INLINE void interleave_part(Floats red, Floats green, Floats blue, Floats* out) {
    float pixels[12];
    vst3q_f32(pixels, {{red, green, blue}});
    for (int i = 0; i < 3; ++i) out[i] = load_vector<Floats>(pixels + 4 * i);
}

}  // namespace
}  // namespace hpcai500

#include "vec16.h"
#include "words_neon.h"
