#include "kernels.h"

#include <bit>
#include <cstdlib>
#include <stdexcept>

namespace hpcai500 {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the kernels load little-endian numbers as they lie");

struct Candidate {
    const Kernels* kernels;
    bool runs_here;
};

// Fastest first.
std::vector<Candidate> candidates() {
#if defined(HPCAI500_X86_KERNELS)
    __builtin_cpu_init();
    // Every processor with AVX2 has BMI1, too, and converts half precision (F16C), for which the compiler has
    // no name.
    const bool avx2 =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("bmi2");
    return {{&avx512_kernels, avx512}, {&avx2_kernels, avx2}, {&portable_kernels, true}};
#elif defined(HPCAI500_NEON_KERNELS)
    return {{&neon_kernels, true}, {&portable_kernels, true}};
#else
    return {{&portable_kernels, true}};
#endif
}

const Kernels& choose() {
    const char* const wish = std::getenv("HPCAI500_ISA");
    const std::string wanted = wish == nullptr ? "" : wish;
    for (const Candidate& candidate : candidates()) {
        if (!wanted.empty() && wanted != candidate.kernels->isa) continue;
        if (candidate.runs_here) return *candidate.kernels;
        if (!wanted.empty())
            throw std::invalid_argument(
                "HPCAI500_ISA=" + wanted +
                ": this processor cannot run it; unset it to use the fastest that it can");
    }
    throw std::invalid_argument("HPCAI500_ISA must be one of: " + compiled_isas() + "; got " + wanted);
}

}  // namespace

const Kernels& kernels() {
    static const Kernels& chosen = choose();
    return chosen;
}

std::vector<const Kernels*> kernels_here() {
    std::vector<const Kernels*> found;
    for (const Candidate& candidate : candidates())
        if (candidate.runs_here) found.insert(found.begin(), candidate.kernels);
    return found;
}

std::string compiled_isas() {
    std::string names;
    for (const Candidate& candidate : candidates())
        (names += names.empty() ? "" : " ") += candidate.kernels->isa;
    return names;
}

}  // namespace hpcai500
