#include "core/isa.h"
#include "resize_kernel.h"

namespace hpcai500 {

const ResizeKernel& resize_kernel() {
#ifdef HPCAI500_X86_KERNELS
    if (chosen_isa() == Isa::avx512) return avx512_kernel;
    if (chosen_isa() == Isa::avx2) return avx2_kernel;
#endif
    static_cast<void>(chosen_isa());  // a wrong HPCAI500_ISA is an error where there is no choice, too
    return portable_kernel;
}

}  // namespace hpcai500
