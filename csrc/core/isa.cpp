#include "isa.h"

#include <bit>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "vectors/kernels.h"

namespace hpcai500 {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the kernels load little-endian numbers as they lie");

struct Candidate {
    Isa isa;
    const Kernels* kernels;
    bool (*runs_here)();
};

bool anywhere() {
    return true;
}

#ifdef HPCAI500_X86_KERNELS
// Every processor with AVX2 has BMI1, too, and converts half precision (F16C), for which the compiler has no
// name.
bool runs_avx2() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}
bool runs_avx512() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("bmi2");
}
#endif

// Fastest first.
const Candidate candidates[] = {
#ifdef HPCAI500_X86_KERNELS
    {Isa::avx512, &avx512_kernels, runs_avx512},
    {Isa::avx2, &avx2_kernels, runs_avx2},
#endif
#ifdef HPCAI500_NEON_KERNELS
    {Isa::neon, &neon_kernels, anywhere},
#endif
    {Isa::portable, &portable_kernels, anywhere},
};

const Candidate& choose() {
    const char* const wish = std::getenv("HPCAI500_ISA");
    const std::string wanted = wish == nullptr ? "" : wish;
    for (const Candidate& candidate : candidates) {
        if (!wanted.empty() && wanted != name(candidate.isa)) continue;
        if (candidate.runs_here()) return candidate;
        if (!wanted.empty())
            throw std::invalid_argument(
                "HPCAI500_ISA=" + wanted +
                ": this processor cannot run it; unset it to use the fastest that it can");
    }
    throw std::invalid_argument("HPCAI500_ISA must be one of: " + std::string(compiled_isas()) + "; got " +
                                wanted);
}

const Candidate& chosen() {
    static const Candidate& candidate = choose();
    return candidate;
}

}  // namespace

Isa chosen_isa() {
    return chosen().isa;
}

const char* name(Isa isa) {
    switch (isa) {
        case Isa::avx512:
            return "avx512";
        case Isa::avx2:
            return "avx2";
        case Isa::neon:
            return "neon";
        case Isa::portable:
            return "portable";
    }
    return "portable";
}

const char* compiled_isas() {
    static const std::string names = [] {
        std::string all;
        for (const Candidate& candidate : candidates) (all += all.empty() ? "" : " ") += name(candidate.isa);
        return all;
    }();
    return names.c_str();
}

const Kernels& kernels() {
    return *chosen().kernels;
}

const ResizeKernel& resize_kernel() {
    return kernels().resize;
}
const ConvertKernel& convert_kernel() {
    return kernels().convert;
}
const CompressionKernel& compression_kernel() {
    return kernels().compression;
}
const DetectionKernel& detection_kernel() {
    return kernels().detection;
}

}  // namespace hpcai500
