#include "baseline_kernels.h"

namespace hpcai500::baseline {
namespace {

std::vector<NamedKernel> find() {
    std::vector<NamedKernel> found{{"portable", &portable_kernel}};
#ifdef __x86_64__
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
    if (avx2) found.push_back({"avx2", &avx2_kernel});
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        found.push_back({"avx512", &avx512_kernel});
#endif
    return found;
}

const BaselineKernel* used = &portable_kernel;

}  // namespace

const std::vector<NamedKernel>& kernels_here() {
    static const std::vector<NamedKernel> kernels = find();
    return kernels;
}

void use(const NamedKernel& kernel) {
    used = kernel.kernel;
}

const BaselineKernel& baseline_kernel() {
    return *used;
}

}  // namespace hpcai500::baseline
