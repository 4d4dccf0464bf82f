// On x86 compiled as the AVX2 kernel is. Reading codes takes no vectors: the AVX-512 kernel's code differs in
// the inverse transform alone.
#include "baseline_kernels.h"
#include "core/vectors/inline.h"

namespace hpcai500::baseline {
namespace {

// Without a use of the coefficients they would not be stored.
inline void inverse_dct(const std::int16_t* block, const std::int16_t*, std::uint8_t*, std::ptrdiff_t) {
    asm volatile("" : : "r"(block) : "memory");
}

// No code depends on the coefficients of the block before.
inline void clear_block(std::int16_t*) {}

#include "core/jpeg/baseline/kernel.inl"

}  // namespace

const BaselineKernel entropy_kernel = {decode_mcus, skip_mcus};

}  // namespace hpcai500::baseline
