// Compiled with -mavx2 -mfma -mf16c, and run only where the processor has them.
#include <immintrin.h>

#include <cstring>

#include "convert_kernel.h"

namespace hpcai500 {
namespace {

struct Vec16 {
    __m256 low, high;
};

inline Vec16 load_values(const unsigned char* from) {
    const auto* values = reinterpret_cast<const float*>(from);
    return {_mm256_loadu_ps(values), _mm256_loadu_ps(values + 8)};
}
inline __m256i load_plane(const unsigned char* from) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
}
inline __m256 load_planes8(const unsigned char* from, long stride) {
    const __m256i low = _mm256_or_si256(load_plane(from), _mm256_slli_epi32(load_plane(from + stride), 8));
    const __m256i high = _mm256_or_si256(_mm256_slli_epi32(load_plane(from + 2 * stride), 16),
                                         _mm256_slli_epi32(load_plane(from + 3 * stride), 24));
    return _mm256_castsi256_ps(_mm256_or_si256(low, high));
}
inline Vec16 load_planes(const unsigned char* from, long stride) {
    return {load_planes8(from, stride), load_planes8(from + 8, stride)};
}
inline Vec16 scale_and_shift(Vec16 values, float scale, float bias) {
    const __m256 factor = _mm256_set1_ps(scale), summand = _mm256_set1_ps(bias);
    return {_mm256_fmadd_ps(values.low, factor, summand), _mm256_fmadd_ps(values.high, factor, summand)};
}

inline void store_half_line(unsigned char* out, __m256i half, bool stream) {
    if (stream) {
        _mm256_stream_si256(reinterpret_cast<__m256i*>(out), half);
    } else {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), half);
    }
}
inline void store_float32(unsigned char* out, Vec16 values, bool stream) {
    store_half_line(out, _mm256_castps_si256(values.low), stream);
    store_half_line(out + 32, _mm256_castps_si256(values.high), stream);
}
inline __m256i to_float16(Vec16 values) {
    return _mm256_set_m128i(_mm256_cvtps_ph(values.high, _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(values.low, _MM_FROUND_TO_NEAREST_INT));
}
inline void store_float16(unsigned char* out, Vec16 low, Vec16 high, bool stream) {
    store_half_line(out, to_float16(low), stream);
    store_half_line(out + 32, to_float16(high), stream);
}

// Round to nearest even by integer arithmetic. The addition would carry some NaN into infinity, so they keep
// their upper half and become quiet.
inline __m256i rounded_upper_half(__m256 values) {
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
inline __m256i to_bfloat16(Vec16 values) {
    // packus works within 128-bit lanes: the permutation puts the four quarters back in order.
    return _mm256_permute4x64_epi64(
        _mm256_packus_epi32(rounded_upper_half(values.low), rounded_upper_half(values.high)), 0xd8);
}
inline void store_bfloat16(unsigned char* out, Vec16 low, Vec16 high, bool stream) {
    store_half_line(out, to_bfloat16(low), stream);
    store_half_line(out + 32, to_bfloat16(high), stream);
}

inline void fence() {
    _mm_sfence();
}

#include "convert_kernel.inl"

}  // namespace

const ConvertKernel avx2_convert_kernel = HPCAI500_CONVERT_KERNEL;

}  // namespace hpcai500
