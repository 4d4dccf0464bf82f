// AVX-512 (F, BW, DQ, VL): 64-byte registers, one to 16 floats.
#pragma once

#include <immintrin.h>

#include <type_traits>

namespace hpcai500 {
constexpr int vector_bytes = 64;
}

#include "native.h"

namespace hpcai500 {
namespace {

HPCAI500_INLINE Floats multiply_add(Floats a, Floats b, Floats sum) {
    return _mm512_fmadd_ps(a, b, sum);
}
HPCAI500_INLINE Doubles multiply_add(Doubles a, Doubles b, Doubles sum) {
    return _mm512_fmadd_pd(a, b, sum);
}
HPCAI500_INLINE Floats fused_multiply_add(Floats a, Floats b, Floats sum) {
    return multiply_add(a, b, sum);
}
// Compilers make a comparison and a choice of what native.h has.
HPCAI500_INLINE Floats larger(Floats a, Floats b) {
    return _mm512_max_ps(a, b);
}
HPCAI500_INLINE Floats smaller(Floats a, Floats b) {
    return _mm512_min_ps(a, b);
}
HPCAI500_INLINE Ints larger(Ints a, Ints b) {
    return as<Ints>(_mm512_max_epi32(as<__m512i>(a), as<__m512i>(b)));
}
HPCAI500_INLINE Ints nearest(Floats values) {
    return as<Ints>(_mm512_cvtps_epi32(values));
}

HPCAI500_INLINE Doubles lower_half(Floats values) {
    return _mm512_cvtps_pd(_mm512_castps512_ps256(values));
}
HPCAI500_INLINE Doubles upper_half(Floats values) {
    return _mm512_cvtps_pd(_mm512_extractf32x8_ps(values, 1));
}
template <class Byte>
HPCAI500_INLINE Ints16 load_bytes(const Byte* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {{as<Ints>(std::is_signed_v<Byte> ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes))}};
}
HPCAI500_INLINE std::int32_t largest_lane(Ints numbers) {
    return _mm512_reduce_max_epi32(as<__m512i>(numbers));
}
HPCAI500_INLINE Bits widen_words(const std::uint16_t* from) {
    return as<Bits>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
}
HPCAI500_INLINE Floats widen_float16(const std::uint16_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
HPCAI500_INLINE HalfWords narrow_float16(Floats values) {
    return as<HalfWords>(_mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
}

// Not as other vectors: compilers would then convert float16 straight to memory, for which AMD's processors
// take twice as long.
HPCAI500_INLINE void store_words(std::uint16_t* to, HalfWords words) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), as<__m256i>(words));
}
HPCAI500_INLINE Words joined(HalfWords low, HalfWords high) {
    return as<Words>(_mm512_inserti64x4(_mm512_castsi256_si512(as<__m256i>(low)), as<__m256i>(high), 1));
}
HPCAI500_INLINE HalfWords upper_words(Bits numbers) {
    return as<HalfWords>(_mm512_cvtepi32_epi16(_mm512_srli_epi32(as<__m512i>(numbers), 16)));
}
HPCAI500_INLINE Words upper_words(Bits low, Bits high) {
    return joined(upper_words(low), upper_words(high));
}
/// Cut to what the bytes can hold.
template <class Byte>
HPCAI500_INLINE void store_bytes(Byte* to, const Ints16& numbers) {
    const __m512i all = as<__m512i>(numbers.part[0]);
    const __m128i bytes = std::is_signed_v<Byte>
                              ? _mm512_cvtsepi32_epi8(all)
                              : _mm512_cvtusepi32_epi8(_mm512_max_epi32(all, _mm512_setzero_si512()));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}

HPCAI500_INLINE void store_past_cache(void* to, Floats values) {
    _mm512_stream_ps(static_cast<float*>(to), values);
}
HPCAI500_INLINE void fence() {
    _mm_sfence();
}

HPCAI500_INLINE Floats broadcast_quarter(const float* from) {
    return _mm512_broadcast_f32x4(_mm_loadu_ps(from));
}
/// Quarter `i` of 16 values: a pixel of four.
template <int i>
HPCAI500_INLINE void store_quarter(float* to, const Vec16& values) {
    _mm_storeu_ps(to, _mm512_extractf32x4_ps(values.part[0], i));
}

/// 16 x 16 values.
HPCAI500_INLINE void transpose_block(Floats* v) {
    __m512 t[16];
    for (int i = 0; i < 8; ++i) {
        t[2 * i] = _mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]);
    }
    for (int i = 0; i < 4; ++i) {
        const __m512d a = _mm512_castps_pd(t[4 * i]), b = _mm512_castps_pd(t[4 * i + 1]);
        const __m512d c = _mm512_castps_pd(t[4 * i + 2]), d = _mm512_castps_pd(t[4 * i + 3]);
        v[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        v[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        v[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        v[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    // Quarters of 4 x 4 are transposed now; what is left is to transpose the 4 x 4 grid of quarters.
    for (int i = 0; i < 4; ++i) {
        t[i] = _mm512_shuffle_f32x4(v[i], v[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(v[i], v[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; ++i) {
        v[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        v[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
        v[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
        v[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

/// Sixteen pixels: r0 g0 b0 ... r15 g15 b15.
HPCAI500_INLINE void interleave_part(Floats red, Floats green, Floats blue, Floats* out) {
    // Places from 16 on are the second operand's; those of blue are filled in by a second permutation.
    const __m512i places[3] = {_mm512_setr_epi32(0, 16, 0, 1, 17, 0, 2, 18, 0, 3, 19, 0, 4, 20, 0, 5),
                               _mm512_setr_epi32(21, 0, 6, 22, 0, 7, 23, 0, 8, 24, 0, 9, 25, 0, 10, 26),
                               _mm512_setr_epi32(0, 11, 27, 0, 12, 28, 0, 13, 29, 0, 14, 30, 0, 15, 31, 0)};
    const __m512i blues[3] = {_mm512_setr_epi32(0, 0, 0, 0, 0, 1, 0, 0, 2, 0, 0, 3, 0, 0, 4, 0),
                              _mm512_setr_epi32(0, 5, 0, 0, 6, 0, 0, 7, 0, 0, 8, 0, 0, 9, 0, 0),
                              _mm512_setr_epi32(10, 0, 0, 11, 0, 0, 12, 0, 0, 13, 0, 0, 14, 0, 0, 15)};
    constexpr __mmask16 is_blue[3] = {0x4924, 0x2492, 0x9249};
    for (int i = 0; i < 3; ++i)
        out[i] = _mm512_mask_permutexvar_ps(_mm512_permutex2var_ps(red, places[i], green), is_blue[i],
                                            blues[i], blue);
}

}  // namespace
}  // namespace hpcai500

#include "vec16.h"
#include "words_avx2.h"
