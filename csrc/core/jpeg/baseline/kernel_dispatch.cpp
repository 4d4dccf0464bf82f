// By itself: programs that try all kernels have a baseline_kernel() of their own.
#include "core/vectors/kernels.h"

namespace hpcai500::baseline {

const BaselineKernel& baseline_kernel() {
    return kernels().baseline;
}

}  // namespace hpcai500::baseline
