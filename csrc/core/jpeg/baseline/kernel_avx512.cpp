// Compiled for AVX-512 (F, BW, DQ, VL) and BMI2, and run only where the processor has them.
#include <immintrin.h>

#include "inverse_dct.h"
#include "kernel.h"
#include "kernel_setup.h"

namespace hpcai500::baseline {
namespace {

#include "inverse_dct_avx2.inl"

inline void clear_block(std::int16_t* block) {
    for (int i = 0; i < 64; i += 32) _mm512_store_si512(block + i, _mm512_setzero_si512());
}

#include "kernel.inl"

}  // namespace

const BaselineKernel avx512_kernel = {decode_mcus, skip_mcus};

}  // namespace hpcai500::baseline
