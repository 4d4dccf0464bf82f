// Compiled with AVX2 and F16C, and run only where the processor has them.
#include <immintrin.h>

#include <cstring>

#include "detection_kernel.h"

namespace hpcai500 {
namespace {

constexpr int vector_bytes = 32;
constexpr int vectors_in_pass = 8;

inline __m256 widen_half(const std::uint16_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline void narrow_half(std::uint16_t* to, __m256 values) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
}

#include "detection_kernel.inl"

}  // namespace

const DetectionKernel avx2_detection_kernel = HPCAI500_DETECTION_KERNEL("avx2");

}  // namespace hpcai500
