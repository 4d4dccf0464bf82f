// AVX2 with FMA and F16C: 32-byte registers, two of them to 16 floats.
#pragma once

#include <immintrin.h>

#include <type_traits>

namespace hpcai500 {
constexpr int vector_bytes = 32;
}

#include "native.h"

namespace hpcai500 {
namespace {

HPCAI500_INLINE Floats multiply_add(Floats a, Floats b, Floats sum) {
    return _mm256_fmadd_ps(a, b, sum);
}
HPCAI500_INLINE Doubles multiply_add(Doubles a, Doubles b, Doubles sum) {
    return _mm256_fmadd_pd(a, b, sum);
}
HPCAI500_INLINE Floats fused_multiply_add(Floats a, Floats b, Floats sum) {
    return multiply_add(a, b, sum);
}
// Compilers make a comparison and a choice of what native.h has.
HPCAI500_INLINE Floats larger(Floats a, Floats b) {
    return _mm256_max_ps(a, b);
}
HPCAI500_INLINE Floats smaller(Floats a, Floats b) {
    return _mm256_min_ps(a, b);
}
HPCAI500_INLINE Ints larger(Ints a, Ints b) {
    return as<Ints>(_mm256_max_epi32(as<__m256i>(a), as<__m256i>(b)));
}
HPCAI500_INLINE Ints nearest(Floats values) {
    return as<Ints>(_mm256_cvtps_epi32(values));
}

HPCAI500_INLINE Doubles lower_half(Floats values) {
    return _mm256_cvtps_pd(_mm256_castps256_ps128(values));
}
HPCAI500_INLINE Doubles upper_half(Floats values) {
    return _mm256_cvtps_pd(_mm256_extractf128_ps(values, 1));
}
template <class Byte>
HPCAI500_INLINE Ints16 load_bytes(const Byte* from) {
    const auto eight = [](const Byte* at) {
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
        return as<Ints>(std::is_signed_v<Byte> ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
    };
    return {{eight(from), eight(from + 8)}};
}
HPCAI500_INLINE std::int32_t largest_lane(Ints numbers) {
    const __m256i all = as<__m256i>(numbers);
    const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}
HPCAI500_INLINE Bits widen_words(const std::uint16_t* from) {
    return as<Bits>(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
HPCAI500_INLINE Floats widen_float16(const std::uint16_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
HPCAI500_INLINE HalfWords narrow_float16(Floats values) {
    return as<HalfWords>(_mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
}

// Not as other vectors: compilers would then convert float16 straight to memory, for which AMD's processors
// take twice as long.
HPCAI500_INLINE void store_words(std::uint16_t* to, HalfWords words) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), as<__m128i>(words));
}
HPCAI500_INLINE Words joined(HalfWords low, HalfWords high) {
    return as<Words>(_mm256_set_m128i(as<__m128i>(high), as<__m128i>(low)));
}
/// packus works within 128-bit lanes: the permutation puts the quarters back in order.
HPCAI500_INLINE Words upper_words(Bits low, Bits high) {
    const __m256i first = _mm256_srli_epi32(as<__m256i>(low), 16);
    const __m256i second = _mm256_srli_epi32(as<__m256i>(high), 16);
    return as<Words>(_mm256_permute4x64_epi64(_mm256_packus_epi32(first, second), 0xd8));
}
HPCAI500_INLINE HalfWords upper_words(Bits numbers) {
    return as<HalfWords>(_mm256_castsi256_si128(as<__m256i>(upper_words(numbers, numbers))));
}
/// Cut to what the bytes can hold.
template <class Byte>
HPCAI500_INLINE void store_bytes(Byte* to, const Ints16& numbers) {
    const __m256i words = _mm256_permute4x64_epi64(
        _mm256_packs_epi32(as<__m256i>(numbers.part[0]), as<__m256i>(numbers.part[1])), 0xd8);
    const __m128i low = _mm256_castsi256_si128(words), high = _mm256_extracti128_si256(words, 1);
    const __m128i bytes = std::is_signed_v<Byte> ? _mm_packs_epi16(low, high) : _mm_packus_epi16(low, high);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}

HPCAI500_INLINE void store_past_cache(void* to, Floats values) {
    _mm256_stream_ps(static_cast<float*>(to), values);
}
HPCAI500_INLINE void fence() {
    _mm_sfence();
}

HPCAI500_INLINE Floats broadcast_quarter(const float* from) {
    return _mm256_broadcast_ps(reinterpret_cast<const __m128*>(from));
}
/// Quarter `i` of 16 values: a pixel of four.
template <int i>
HPCAI500_INLINE void store_quarter(float* to, const Vec16& values) {
    _mm_storeu_ps(to, _mm256_extractf128_ps(values.part[i / 2], i % 2));
}

/// 8 x 8 values.
HPCAI500_INLINE void transpose_block(Floats* v) {
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

/// Eight pixels: r0 g0 b0 ... r7 g7 b7.
HPCAI500_INLINE void interleave_part(Floats red, Floats green, Floats blue, Floats* out) {
    // Each channel's values in the order in which thirds of the result take them, then blends.
    const __m256 r = _mm256_permutevar8x32_ps(red, _mm256_setr_epi32(0, 3, 6, 1, 4, 7, 2, 5));
    const __m256 g = _mm256_permutevar8x32_ps(green, _mm256_setr_epi32(5, 0, 3, 6, 1, 4, 7, 2));
    const __m256 b = _mm256_permutevar8x32_ps(blue, _mm256_setr_epi32(2, 5, 0, 3, 6, 1, 4, 7));
    out[0] = _mm256_blend_ps(_mm256_blend_ps(r, g, 0x92), b, 0x24);
    out[1] = _mm256_blend_ps(_mm256_blend_ps(r, g, 0x24), b, 0x49);
    out[2] = _mm256_blend_ps(_mm256_blend_ps(r, g, 0x49), b, 0x92);
}

}  // namespace
}  // namespace hpcai500

#include "vec16.h"
#include "words_avx2.h"
