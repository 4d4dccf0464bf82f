#include <cstdlib>
#include <stdexcept>
#include <string>

#include "resize_kernel.h"

namespace hpcai500 {
namespace {

struct Candidate {
    const ResizeKernel* kernel;
    bool runs_here;
};

const ResizeKernel& choose() {
#ifdef HPCAI500_X86_KERNELS
    __builtin_cpu_init();
    const Candidate candidates[] = {
        {&avx512_kernel, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")},
        // Every processor with AVX2 converts half precision (F16C); the compiler has no name to ask for it.
        {&avx2_kernel, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")},
        {&portable_kernel, true},
    };
#else
    const Candidate candidates[] = {{&portable_kernel, true}};
#endif
    const char* wish = std::getenv("HPCAI500_ISA");
    if (wish == nullptr || *wish == '\0') {
        for (const Candidate& candidate : candidates)
            if (candidate.runs_here) return *candidate.kernel;
    }
    const std::string wanted = wish == nullptr ? "" : wish;
    for (const Candidate& candidate : candidates) {
        if (wanted != candidate.kernel->isa) continue;
        if (!candidate.runs_here)
            throw std::invalid_argument(
                "HPCAI500_ISA=" + wanted +
                ": this processor cannot run it; unset it to use the fastest that it can");
        return *candidate.kernel;
    }
    throw std::invalid_argument("HPCAI500_ISA must be one of: " + std::string(compiled_kernels()) + "; got " +
                                wanted);
}

}  // namespace

const ResizeKernel& resize_kernel() {
    static const ResizeKernel& chosen = choose();
    return chosen;
}

const char* compiled_kernels() {
#ifdef HPCAI500_X86_KERNELS
    return "avx512 avx2 portable";
#else
    return "portable";
#endif
}

}  // namespace hpcai500
