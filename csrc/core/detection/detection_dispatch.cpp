#include <string_view>

#include "core/resize_kernel.h"
#include "detection_kernel.h"

namespace hpcai500 {
namespace {

const DetectionKernel& choose(std::string_view isa) {
#ifdef HPCAI500_X86_KERNELS
    if (isa == avx512_detection_kernel.isa) return avx512_detection_kernel;
    if (isa == avx2_detection_kernel.isa) return avx2_detection_kernel;
#endif
    static_cast<void>(isa);
    return portable_detection_kernel;
}

}  // namespace

const DetectionKernel& detection_kernel() {
    static const DetectionKernel& chosen = choose(resize_kernel().isa);
    return chosen;
}

}  // namespace hpcai500
