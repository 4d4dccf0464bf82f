#include "isa.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace hpcai500 {
namespace {

struct Candidate {
    Isa isa;
    bool runs_here;
};

Isa choose() {
#ifdef HPCAI500_X86_KERNELS
    __builtin_cpu_init();
    const Candidate candidates[] = {
        // Every processor with AVX2 has BMI1, too.
        {Isa::avx512, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("bmi2")},
        // Every processor with AVX2 converts half precision (F16C); the compiler has no name to ask for it.
        {Isa::avx2,
         __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")},
        {Isa::portable, true},
    };
#else
    const Candidate candidates[] = {{Isa::portable, true}};
#endif
    const char* wish = std::getenv("HPCAI500_ISA");
    if (wish == nullptr || *wish == '\0') {
        for (const Candidate& candidate : candidates)
            if (candidate.runs_here) return candidate.isa;
    }
    const std::string wanted = wish == nullptr ? "" : wish;
    for (const Candidate& candidate : candidates) {
        if (wanted != name(candidate.isa)) continue;
        if (!candidate.runs_here)
            throw std::invalid_argument(
                "HPCAI500_ISA=" + wanted +
                ": this processor cannot run it; unset it to use the fastest that it can");
        return candidate.isa;
    }
    throw std::invalid_argument("HPCAI500_ISA must be one of: " + std::string(compiled_isas()) + "; got " +
                                wanted);
}

}  // namespace

Isa chosen_isa() {
    static const Isa chosen = choose();
    return chosen;
}

const char* name(Isa isa) {
    switch (isa) {
        case Isa::avx512:
            return "avx512";
        case Isa::avx2:
            return "avx2";
        case Isa::portable:
            return "portable";
    }
    return "portable";
}

const char* compiled_isas() {
#ifdef HPCAI500_X86_KERNELS
    return "avx512 avx2 portable";
#else
    return "portable";
#endif
}

}  // namespace hpcai500
