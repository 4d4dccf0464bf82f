// Compiled with AVX-512 F, BW, DQ and VL, and run only where the processor has them.
#include <immintrin.h>

#include <cstring>

#include "detection_kernel.h"

namespace hpcai500 {
namespace {

constexpr int vector_bytes = 64;
constexpr int vectors_in_pass = 4;

inline __m512 widen_half(const std::uint16_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline void narrow_half(std::uint16_t* to, __m512 values) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
}

#include "detection_kernel.inl"

}  // namespace

const DetectionKernel avx512_detection_kernel = HPCAI500_DETECTION_KERNEL("avx512");

}  // namespace hpcai500
