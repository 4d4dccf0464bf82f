#include "compression_kernel.h"
#include "core/isa.h"

namespace hpcai500 {

const CompressionKernel& compression_kernel() {
#ifdef HPCAI500_X86_KERNELS
    if (chosen_isa() == Isa::avx512) return avx512_compression_kernel;
    if (chosen_isa() == Isa::avx2) return avx2_compression_kernel;
#endif
    return portable_compression_kernel;
}

}  // namespace hpcai500
