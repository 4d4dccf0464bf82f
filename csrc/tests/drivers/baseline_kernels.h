// All kernels of the JPEG decoder in one program. Linked before the library, this choice wins over that of
// kernel_dispatch.cpp.
#pragma once

#include <vector>

#include "core/jpeg/baseline/kernel.h"

namespace hpcai500::baseline {

struct NamedKernel {
    const char* name;
    const BaselineKernel* kernel;
};

/// Those that this processor runs; the portable one is first.
const std::vector<NamedKernel>& kernels_here();

/// Makes baseline_kernel() return `kernel` from now on.
void use(const NamedKernel& kernel);

/// For measuring (entropy_kernel.cpp): reads codes and stores coefficients as the kernels do, and makes no
/// samples of them.
extern const BaselineKernel entropy_kernel;

}  // namespace hpcai500::baseline
