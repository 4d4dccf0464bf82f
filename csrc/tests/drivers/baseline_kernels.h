// All kernels of the JPEG decoder in one program. Linked before the library, this choice wins over that of
// kernel_dispatch.cpp.
#pragma once

#include "core/vectors/kernels.h"

namespace hpcai500::baseline {

/// Makes baseline_kernel() return `kernel` from now on.
void use(const BaselineKernel& kernel);

/// For measuring (entropy_kernel.cpp): reads codes and stores coefficients as the kernels do, and makes no
/// samples of them.
extern const BaselineKernel entropy_kernel;

}  // namespace hpcai500::baseline
