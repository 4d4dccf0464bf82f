#include <bit>

#include "convert_kernel.h"
#include "core/isa.h"

namespace hpcai500 {

static_assert(std::endian::native == std::endian::little,
              "the kernels load little-endian floats as they lie");

const ConvertKernel& convert_kernel() {
#ifdef HPCAI500_X86_KERNELS
    if (chosen_isa() == Isa::avx512) return avx512_convert_kernel;
    if (chosen_isa() == Isa::avx2) return avx2_convert_kernel;
#endif
    static_cast<void>(chosen_isa());  // a wrong HPCAI500_ISA is an error where there is no choice, too
    return portable_convert_kernel;
}

}  // namespace hpcai500
