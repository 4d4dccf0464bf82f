// Compiled with -mavx2 -mbmi -mbmi2, and run only where the processor has them.
#include <immintrin.h>

#include "inverse_dct.h"
#include "kernel.h"
#include "kernel_setup.h"

namespace hpcai500::baseline {
namespace {

#include "inverse_dct_avx2.inl"

inline void clear_block(std::int16_t* block) {
    for (int i = 0; i < 64; i += 16)
        _mm256_store_si256(reinterpret_cast<__m256i*>(block + i), _mm256_setzero_si256());
}

#include "kernel.inl"

}  // namespace

const BaselineKernel avx2_kernel = {decode_mcus, skip_mcus};

}  // namespace hpcai500::baseline
