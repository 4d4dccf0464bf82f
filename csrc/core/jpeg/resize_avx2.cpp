// Compiled with -mavx2 -mfma -mf16c, and run only where the processor has them.
#include <immintrin.h>

#include "resize_kernel.h"

namespace hpcai500 {
namespace {

struct Vec16 {
    __m256 low, high;
};

inline Vec16 zero() {
    return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
inline Vec16 load(const float* from) {
    return {_mm256_load_ps(from), _mm256_load_ps(from + 8)};
}
inline void store(float* to, Vec16 values) {
    _mm256_store_ps(to, values.low);
    _mm256_store_ps(to + 8, values.high);
}
inline Vec16 repeat(float value) {
    return {_mm256_set1_ps(value), _mm256_set1_ps(value)};
}
inline Vec16 add(Vec16 one, Vec16 other) {
    return {_mm256_add_ps(one.low, other.low), _mm256_add_ps(one.high, other.high)};
}
inline Vec16 clamp(Vec16 values, Vec16 lowest, Vec16 highest) {
    return {_mm256_min_ps(_mm256_max_ps(values.low, lowest.low), highest.low),
            _mm256_min_ps(_mm256_max_ps(values.high, lowest.high), highest.high)};
}
inline Vec16 load_bytes(const std::uint8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
}
inline Vec16 multiply_add(Vec16 values, float weight, Vec16 sum) {
    const __m256 factor = _mm256_set1_ps(weight);
    return {_mm256_fmadd_ps(factor, values.low, sum.low), _mm256_fmadd_ps(factor, values.high, sum.high)};
}
inline Vec16 scale_and_shift(Vec16 values, Vec16 scale, Vec16 bias) {
    return {_mm256_fmadd_ps(values.low, scale.low, bias.low),
            _mm256_fmadd_ps(values.high, scale.high, bias.high)};
}
inline Vec16 repeat_channels(const float* channels) {
    const __m128 pixel = _mm_setr_ps(channels[0], channels[1], channels[2], 0);
    const __m256 twice = _mm256_set_m128(pixel, pixel);
    return {twice, twice};
}

// Four pixels, each to the same place of its own column of the workspace.
inline void scatter_pixels(float* out, Vec16 pixels) {
    _mm_store_ps(out, _mm256_castps256_ps128(pixels.low));
    _mm_store_ps(out + 16, _mm256_extractf128_ps(pixels.low, 1));
    _mm_store_ps(out + 32, _mm256_castps256_ps128(pixels.high));
    _mm_store_ps(out + 48, _mm256_extractf128_ps(pixels.high, 1));
}

inline void store_pixel(float* out, const Vec16& column, int row) {
    _mm_storeu_ps(out, _mm_load_ps(reinterpret_cast<const float*>(&column) + row * 4));
}

inline void transpose8(__m256* v) {
    __m256 t[8];
    for (int i = 0; i < 4; ++i) {
        t[2 * i] = _mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
        const __m256d a = _mm256_castps_pd(t[4 * i]), b = _mm256_castps_pd(t[4 * i + 1]);
        const __m256d c = _mm256_castps_pd(t[4 * i + 2]), d = _mm256_castps_pd(t[4 * i + 3]);
        v[4 * i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
        v[4 * i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
        v[4 * i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
        v[4 * i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
    }
    for (int i = 0; i < 4; ++i) {
        t[i] = _mm256_permute2f128_ps(v[i], v[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(v[i], v[i + 4], 0x31);
    }
    for (int i = 0; i < 8; ++i) v[i] = t[i];
}

inline void transpose(Vec16* v) {
    __m256 upper_left[8], upper_right[8], lower_left[8], lower_right[8];
    for (int i = 0; i < 8; ++i) {
        upper_left[i] = v[i].low;
        upper_right[i] = v[i].high;
        lower_left[i] = v[i + 8].low;
        lower_right[i] = v[i + 8].high;
    }
    transpose8(upper_left);
    transpose8(upper_right);
    transpose8(lower_left);
    transpose8(lower_right);
    for (int i = 0; i < 8; ++i) {
        v[i] = {upper_left[i], lower_left[i]};
        v[i + 8] = {upper_right[i], lower_right[i]};
    }
}

// Eight pixels: r0 g0 b0 ... r7 g7 b7.
inline void interleave8(__m256 red, __m256 green, __m256 blue, __m256* out) {
    // Each channel's values in the order in which thirds of the result take them, then blends.
    const __m256 r = _mm256_permutevar8x32_ps(red, _mm256_setr_epi32(0, 3, 6, 1, 4, 7, 2, 5));
    const __m256 g = _mm256_permutevar8x32_ps(green, _mm256_setr_epi32(5, 0, 3, 6, 1, 4, 7, 2));
    const __m256 b = _mm256_permutevar8x32_ps(blue, _mm256_setr_epi32(2, 5, 0, 3, 6, 1, 4, 7));
    out[0] = _mm256_blend_ps(_mm256_blend_ps(r, g, 0x92), b, 0x24);
    out[1] = _mm256_blend_ps(_mm256_blend_ps(r, g, 0x24), b, 0x49);
    out[2] = _mm256_blend_ps(_mm256_blend_ps(r, g, 0x49), b, 0x92);
}

// out: r0 g0 b0 r1 g1 b1 ... r15 g15 b15.
inline void interleave(Vec16 red, Vec16 green, Vec16 blue, Vec16* out) {
    __m256 eighths[6];
    interleave8(red.low, green.low, blue.low, eighths);
    interleave8(red.high, green.high, blue.high, eighths + 3);
    for (int i = 0; i < 3; ++i) out[i] = {eighths[2 * i], eighths[2 * i + 1]};
}

inline void store_float32(float* out, Vec16 values, bool stream) {
    if (stream) {
        _mm256_stream_ps(out, values.low);
        _mm256_stream_ps(out + 8, values.high);
    } else {
        _mm256_storeu_ps(out, values.low);
        _mm256_storeu_ps(out + 8, values.high);
    }
}
inline void store_float16(std::uint16_t* out, Vec16 values) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_cvtps_ph(values.low, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 8),
                     _mm256_cvtps_ph(values.high, _MM_FROUND_TO_NEAREST_INT));
}

// The upper halves of eight floats, rounded to nearest even.
inline __m256i rounded_upper_half(__m256 values) {
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
}
inline void store_bfloat16(std::uint16_t* out, Vec16 values) {
    // packus works within 128-bit lanes: the permutation puts the four quarters back in order.
    const __m256i packed =
        _mm256_packus_epi32(rounded_upper_half(values.low), rounded_upper_half(values.high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permute4x64_epi64(packed, 0xd8));
}
inline void store_uint8(std::uint8_t* out, Vec16 values) {
    const __m256i words = _mm256_permute4x64_epi64(
        _mm256_packs_epi32(_mm256_cvtps_epi32(values.low), _mm256_cvtps_epi32(values.high)), 0xd8);
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), bytes);
}

inline void fence() {
    _mm_sfence();
}

#include "resize_kernel.inl"
// Behind it, whose types it uses.
#include "planar_kernel.inl"

}  // namespace

const ResizeKernel avx2_kernel = HPCAI500_RESIZE_KERNEL;

}  // namespace hpcai500
