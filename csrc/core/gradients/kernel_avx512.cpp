// Compiled with AVX-512 F, BW, DQ and VL, and run only where the processor has them.
#include <immintrin.h>

#include <cstring>

#include "compression_kernel.h"
#include "quantised_layout.h"

namespace hpcai500 {
namespace {

using Vec16 = __m512;
using Codes16 = __m512i;
using Peak16 = __m512i;
struct Squares32 {
    __m512d lanes[4];
};

inline Vec16 load(const float* from) {
    return _mm512_loadu_ps(from);
}
inline Vec16 load_float16(const std::uint16_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline Vec16 load_bfloat16(const std::uint16_t* from) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline Vec16 load_codes(const std::uint8_t* from) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
}
inline Vec16 multiply(Vec16 values, float factor) {
    return _mm512_mul_ps(values, _mm512_set1_ps(factor));
}
inline Vec16 add(Vec16 a, Vec16 b) {
    return _mm512_add_ps(a, b);
}
inline Vec16 subtract(Vec16 a, Vec16 b) {
    return _mm512_sub_ps(a, b);
}

inline void store_line(void* out, __m512i line, bool stream) {
    if (stream) {
        _mm512_stream_si512(static_cast<__m512i*>(out), line);
    } else {
        _mm512_storeu_si512(out, line);
    }
}
inline void store(float* out, Vec16 values, bool stream) {
    store_line(out, _mm512_castps_si512(values), stream);
}
inline __m512i joined(__m256i low, __m256i high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
inline void store_float16(std::uint16_t* out, Vec16 low, Vec16 high, bool stream) {
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
inline void store_bfloat16(std::uint16_t* out, Vec16 low, Vec16 high, bool stream) {
    store_line(out, joined(to_bfloat16(low), to_bfloat16(high)), stream);
}

inline Codes16 nearest(Vec16 values) {
    return _mm512_cvtps_epi32(values);
}
inline Vec16 widen(Codes16 codes) {
    return _mm512_cvtepi32_ps(codes);
}
inline void store_codes(std::uint8_t* out, Codes16 codes) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(codes));
}

inline Peak16 peak_of(Peak16 peak, Vec16 values) {
    const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(values), _mm512_set1_epi32(0x7fffffff));
    return _mm512_max_epi32(peak, magnitude);
}
inline std::uint32_t largest(Peak16 peak) {
    return static_cast<std::uint32_t>(_mm512_reduce_max_epi32(peak));
}

// The square of a float is exact in double, so a fused sum is the rounded one.
inline void add_to(__m512d& sum, __m256 values) {
    const __m512d wide = _mm512_cvtps_pd(values);
    sum = _mm512_fmadd_pd(wide, wide, sum);
}
template <class Pair>
inline void add_squares(Squares32& squares, const Pair& values) {
    add_to(squares.lanes[0], _mm512_castps512_ps256(values.low));
    add_to(squares.lanes[1], _mm512_extractf32x8_ps(values.low, 1));
    add_to(squares.lanes[2], _mm512_castps512_ps256(values.high));
    add_to(squares.lanes[3], _mm512_extractf32x8_ps(values.high, 1));
}
inline void store_lanes(double* out, const Squares32& squares) {
    for (int i = 0; i < 4; ++i) _mm512_storeu_pd(out + 8 * i, squares.lanes[i]);
}

inline void fence() {
    _mm_sfence();
}

#include "compression_kernel.inl"

}  // namespace

const CompressionKernel avx512_compression_kernel = HPCAI500_COMPRESSION_KERNEL;

}  // namespace hpcai500
