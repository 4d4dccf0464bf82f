// Compiled with AVX2, FMA and F16C, and run only where the processor has them.
#include <immintrin.h>

#include <cstring>

#include "compression_kernel.h"
#include "quantised_layout.h"

namespace hpcai500 {
namespace {

struct Vec16 {
    __m256 low, high;
};
struct Codes16 {
    __m256i low, high;
};
using Peak16 = __m256i;
struct Squares32 {
    __m256d lanes[8];
};

inline Vec16 load(const float* from) {
    return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
}
inline __m128i load_eight(const std::uint16_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
inline Vec16 load_float16(const std::uint16_t* from) {
    return {_mm256_cvtph_ps(load_eight(from)), _mm256_cvtph_ps(load_eight(from + 8))};
}
inline __m256 upper_halves(__m128i halves) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
inline Vec16 load_bfloat16(const std::uint16_t* from) {
    return {upper_halves(load_eight(from)), upper_halves(load_eight(from + 8))};
}
inline Vec16 load_codes(const std::uint8_t* from) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8)))};
}
inline Vec16 multiply(Vec16 values, float factor) {
    const __m256 factors = _mm256_set1_ps(factor);
    return {_mm256_mul_ps(values.low, factors), _mm256_mul_ps(values.high, factors)};
}
inline Vec16 add(Vec16 a, Vec16 b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline Vec16 subtract(Vec16 a, Vec16 b) {
    return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}

inline void store_half_line(void* out, __m256i half, bool stream) {
    if (stream) {
        _mm256_stream_si256(static_cast<__m256i*>(out), half);
    } else {
        _mm256_storeu_si256(static_cast<__m256i*>(out), half);
    }
}
inline void store(float* out, Vec16 values, bool stream) {
    store_half_line(out, _mm256_castps_si256(values.low), stream);
    store_half_line(out + 8, _mm256_castps_si256(values.high), stream);
}
inline __m256i to_float16(Vec16 values) {
    return _mm256_set_m128i(_mm256_cvtps_ph(values.high, _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(values.low, _MM_FROUND_TO_NEAREST_INT));
}
inline void store_float16(std::uint16_t* out, Vec16 low, Vec16 high, bool stream) {
    store_half_line(out, to_float16(low), stream);
    store_half_line(out + 16, to_float16(high), stream);
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
inline void store_bfloat16(std::uint16_t* out, Vec16 low, Vec16 high, bool stream) {
    store_half_line(out, to_bfloat16(low), stream);
    store_half_line(out + 16, to_bfloat16(high), stream);
}

inline Codes16 nearest(Vec16 values) {
    return {_mm256_cvtps_epi32(values.low), _mm256_cvtps_epi32(values.high)};
}
inline Vec16 widen(Codes16 codes) {
    return {_mm256_cvtepi32_ps(codes.low), _mm256_cvtepi32_ps(codes.high)};
}
inline void store_codes(std::uint8_t* out, Codes16 codes) {
    // As in to_bfloat16, the quarters are put back in order.
    const __m256i shorts = _mm256_permute4x64_epi64(_mm256_packs_epi32(codes.low, codes.high), 0xd8);
    const __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(shorts), _mm256_extracti128_si256(shorts, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), bytes);
}

inline __m256i magnitude(__m256 values) {
    return _mm256_and_si256(_mm256_castps_si256(values), _mm256_set1_epi32(0x7fffffff));
}
inline Peak16 peak_of(Peak16 peak, Vec16 values) {
    return _mm256_max_epi32(peak, _mm256_max_epi32(magnitude(values.low), magnitude(values.high)));
}
inline std::uint32_t largest(Peak16 peak) {
    std::uint32_t lane[8], result = 0;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lane), peak);
    for (const std::uint32_t bits : lane) result = bits > result ? bits : result;
    return result;
}

// The square of a float is exact in double, so a fused sum is the rounded one.
inline void add_to(__m256d* sums, __m256 values) {
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(values));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(values, 1));
    sums[0] = _mm256_fmadd_pd(low, low, sums[0]);
    sums[1] = _mm256_fmadd_pd(high, high, sums[1]);
}
template <class Pair>
inline void add_squares(Squares32& squares, const Pair& values) {
    add_to(squares.lanes, values.low.low);
    add_to(squares.lanes + 2, values.low.high);
    add_to(squares.lanes + 4, values.high.low);
    add_to(squares.lanes + 6, values.high.high);
}
inline void store_lanes(double* out, const Squares32& squares) {
    for (int i = 0; i < 8; ++i) _mm256_storeu_pd(out + 4 * i, squares.lanes[i]);
}

inline void fence() {
    _mm_sfence();
}

#include "compression_kernel.inl"

}  // namespace

const CompressionKernel avx2_compression_kernel = HPCAI500_COMPRESSION_KERNEL;

}  // namespace hpcai500
