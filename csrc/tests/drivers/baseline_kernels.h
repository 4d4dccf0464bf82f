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

}  // namespace hpcai500::baseline
