// Compiled with -mavx512f -mavx512bw -mavx512dq -mavx512vl, and run only where the processor has them.
#include <immintrin.h>

#include "resize_kernel.h"

namespace hpcai500 {
namespace {

using Vec16 = __m512;

inline Vec16 zero() {
    return _mm512_setzero_ps();
}
inline Vec16 load(const float* from) {
    return _mm512_load_ps(from);
}
inline void store(float* to, Vec16 values) {
    _mm512_store_ps(to, values);
}
inline Vec16 repeat(float value) {
    return _mm512_set1_ps(value);
}
inline Vec16 add(Vec16 one, Vec16 other) {
    return _mm512_add_ps(one, other);
}
inline Vec16 clamp(Vec16 values, Vec16 lowest, Vec16 highest) {
    return _mm512_min_ps(_mm512_max_ps(values, lowest), highest);
}
inline Vec16 load_bytes(const std::uint8_t* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
inline Vec16 multiply_add(Vec16 values, float weight, Vec16 sum) {
    return _mm512_fmadd_ps(_mm512_set1_ps(weight), values, sum);
}
inline Vec16 scale_and_shift(Vec16 values, Vec16 scale, Vec16 bias) {
    return _mm512_fmadd_ps(values, scale, bias);
}
inline Vec16 repeat_channels(const float* channels) {
    return _mm512_broadcast_f32x4(_mm_setr_ps(channels[0], channels[1], channels[2], 0));
}

// Four pixels, each to the same place of its own column of the workspace.
inline void scatter_pixels(float* out, Vec16 pixels) {
    _mm_store_ps(out, _mm512_castps512_ps128(pixels));
    _mm_store_ps(out + 16, _mm512_extractf32x4_ps(pixels, 1));
    _mm_store_ps(out + 32, _mm512_extractf32x4_ps(pixels, 2));
    _mm_store_ps(out + 48, _mm512_extractf32x4_ps(pixels, 3));
}

inline void store_pixel(float* out, const Vec16& column, int row) {
    _mm_storeu_ps(out, _mm_load_ps(reinterpret_cast<const float*>(&column) + row * 4));
}

inline void transpose(Vec16* v) {
    Vec16 t[16];
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

// out: r0 g0 b0 r1 g1 b1 ... r15 g15 b15.
inline void interleave(Vec16 red, Vec16 green, Vec16 blue, Vec16* out) {
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

inline void store_float32(float* out, Vec16 values, bool stream) {
    if (stream) {
        _mm512_stream_ps(out, values);
    } else {
        _mm512_storeu_ps(out, values);
    }
}
inline void store_float16(std::uint16_t* out, Vec16 values) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
}
inline void store_bfloat16(std::uint16_t* out, Vec16 values) {
    // Round to nearest even by integer arithmetic: the AVX512-BF16 instruction would flush subnormal numbers
    // to zero.
    const __m512i bits = _mm512_castps_si512(values);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}
inline void store_uint8(std::uint8_t* out, Vec16 values) {
    const __m512i levels = _mm512_max_epi32(_mm512_cvtps_epi32(values), _mm512_setzero_si512());
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtusepi32_epi8(levels));
}

inline void fence() {
    _mm_sfence();
}

#include "resize_kernel.inl"
// Behind it, whose types it uses.
#include "planar_kernel.inl"

}  // namespace

const ResizeKernel avx512_kernel = HPCAI500_RESIZE_KERNEL;

}  // namespace hpcai500
