#include "core/isa.h"
#include "detection_kernel.h"

namespace hpcai500 {

const DetectionKernel& detection_kernel() {
#ifdef HPCAI500_X86_KERNELS
    if (chosen_isa() == Isa::avx512) return avx512_detection_kernel;
    if (chosen_isa() == Isa::avx2) return avx2_detection_kernel;
#endif
    return portable_detection_kernel;
}

}  // namespace hpcai500
