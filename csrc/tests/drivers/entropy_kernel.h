// Kernels for measuring: what a decoder's time goes to.
#pragma once

#include "core/jpeg/baseline/kernel.h"

namespace hpcai500::baseline {

/// Reads codes and stores coefficients as the kernels do, and makes no samples of them.
extern const BaselineKernel entropy_kernel;

}  // namespace hpcai500::baseline
