// Compiled with -mavx512f -mavx512bw -mavx512dq -mavx512vl, and run only where the processor has them.
#include <immintrin.h>

#include <cstring>

#include "convert_kernel.h"

namespace hpcai500 {
namespace {

using Vec16 = __m512;

inline Vec16 load_values(const unsigned char* from) {
    return _mm512_loadu_ps(from);
}
inline __m512i load_plane(const unsigned char* from) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline Vec16 load_planes(const unsigned char* from, long stride) {
    const __m512i low = _mm512_or_si512(load_plane(from), _mm512_slli_epi32(load_plane(from + stride), 8));
    const __m512i high = _mm512_or_si512(_mm512_slli_epi32(load_plane(from + 2 * stride), 16),
                                         _mm512_slli_epi32(load_plane(from + 3 * stride), 24));
    return _mm512_castsi512_ps(_mm512_or_si512(low, high));
}
inline Vec16 scale_and_shift(Vec16 values, float scale, float bias) {
    return _mm512_fmadd_ps(values, _mm512_set1_ps(scale), _mm512_set1_ps(bias));
}

inline void store_line(unsigned char* out, __m512i line, bool stream) {
    if (stream) {
        _mm512_stream_si512(reinterpret_cast<__m512i*>(out), line);
    } else {
        _mm512_storeu_si512(out, line);
    }
}
inline void store_float32(unsigned char* out, Vec16 values, bool stream) {
    store_line(out, _mm512_castps_si512(values), stream);
}
inline __m512i joined(__m256i low, __m256i high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
inline void store_float16(unsigned char* out, Vec16 low, Vec16 high, bool stream) {
    store_line(out,
               joined(_mm512_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT),
                      _mm512_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT)),
               stream);
}

// Round to nearest even by integer arithmetic: the AVX512-BF16 instruction would flush subnormal numbers to
// zero. The addition would carry some NaN into infinity, so they keep their upper half and become quiet.
inline __m256i to_bfloat16(Vec16 values) {
    const __m512i bits = _mm512_castps_si512(values);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x00400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
}
inline void store_bfloat16(unsigned char* out, Vec16 low, Vec16 high, bool stream) {
    store_line(out, joined(to_bfloat16(low), to_bfloat16(high)), stream);
}

inline void fence() {
    _mm_sfence();
}

#include "convert_kernel.inl"

}  // namespace

const ConvertKernel avx512_convert_kernel = HPCAI500_CONVERT_KERNEL;

}  // namespace hpcai500
