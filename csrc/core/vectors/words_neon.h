// Eight 16-bit numbers (words.h) with NEON: their 32-bit sums are two registers.
#pragma once

#include "words.h"

namespace hpcai500 {
namespace {

struct Words16 {
    Words8 first, second;
};

HPCAI500_INLINE int16x8_t signed_of(Words8 values) {
    return vreinterpretq_s16_u16(values);
}
HPCAI500_INLINE Words8 words_of(int16x8_t values) {
    return vreinterpretq_u16_s16(values);
}

template <class Pair>
HPCAI500_INLINE Sums8 multiply(Words8 a, Words8 b, Pair factors) {
    const int16x8_t one = signed_of(a), other = signed_of(b);
    const int32x4_t low = vmull_n_s16(vget_low_s16(one), factors.first);
    const int32x4_t high = vmull_n_s16(vget_high_s16(one), factors.first);
    return {{vreinterpretq_u32_s32(vmlal_n_s16(low, vget_low_s16(other), factors.second)),
             vreinterpretq_u32_s32(vmlal_n_s16(high, vget_high_s16(other), factors.second))}};
}
HPCAI500_INLINE Sums8 widen(Words8 values) {
    return {{vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(signed_of(values)))),
             vreinterpretq_u32_s32(vmovl_s16(vget_high_s16(signed_of(values))))}};
}
template <int shift>
HPCAI500_INLINE Words8 narrow(const Sums8& sums) {
    const auto half = [](SumBits part) {
        return vqmovn_s32(vshrq_n_s32(vreinterpretq_s32_u32(part), shift));
    };
    return words_of(vcombine_s16(half(sums.part[0]), half(sums.part[1])));
}
template <int shift>
HPCAI500_INLINE Words16 narrow(const Sums8& one, const Sums8& other) {
    return {narrow<shift>(one), narrow<shift>(other)};
}

HPCAI500_INLINE void transpose(const Words16* in, Words8* out) {
    for (int i = 0; i < 4; ++i) {
        out[i] = in[i].first;
        out[7 - i] = in[i].second;
    }
    // Blocks of 1, 2 and 4 change places with their mirrored ones.
    for (int i = 0; i < 8; i += 2) {
        const uint16x8x2_t two = vtrnq_u16(out[i], out[i + 1]);
        out[i] = two.val[0];
        out[i + 1] = two.val[1];
    }
    for (int k = 0; k < 4; ++k) {
        const int i = k + k / 2 * 2;
        const uint32x4x2_t two = vtrnq_u32(vreinterpretq_u32_u16(out[i]), vreinterpretq_u32_u16(out[i + 2]));
        out[i] = vreinterpretq_u16_u32(two.val[0]);
        out[i + 2] = vreinterpretq_u16_u32(two.val[1]);
    }
    for (int i = 0; i < 4; ++i) {
        const Words8 one = out[i], other = out[i + 4];
        out[i] = vcombine_u16(vget_low_u16(one), vget_low_u16(other));
        out[i + 4] = vcombine_u16(vget_high_u16(one), vget_high_u16(other));
    }
}

HPCAI500_INLINE void store_samples(const Words16* columns, std::uint8_t* samples, std::ptrdiff_t stride) {
    Words8 rows[8];
    transpose(columns, rows);
    for (int i = 0; i < 8; ++i) {
        const int8x8_t bytes = vqmovn_s16(signed_of(rows[i]));
        vst1_u8(samples + i * stride, veor_u8(vreinterpret_u8_s8(bytes), vdup_n_u8(0x80)));
    }
}

}  // namespace
}  // namespace hpcai500
