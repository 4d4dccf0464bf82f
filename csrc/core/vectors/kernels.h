// The kernels of all jobs for one instruction set: kernels.inl, compiled once for each by kernels_*.cpp.
// Which one runs is chosen once, for all jobs, at run time.
#pragma once

#include <string>
#include <vector>

#include "core/climate/convert_kernel.h"
#include "core/detection/detection_kernel.h"
#include "core/gradients/compression_kernel.h"
#include "core/jpeg/baseline/kernel.h"
#include "core/jpeg/resize_kernel.h"

namespace hpcai500 {

struct Kernels {
    const char* isa;  ///< the instruction set: portable, avx2, avx512 or neon
    ResizeKernel resize;
    ConvertKernel convert;
    CompressionKernel compression;
    DetectionKernel detection;
    baseline::BaselineKernel baseline;
};

extern const Kernels portable_kernels, avx2_kernels, avx512_kernels, neon_kernels;

/// The fastest that this processor runs, or the ones that the environment variable HPCAI500_ISA names.
/// Throws std::invalid_argument when the variable names some that are unknown, not compiled in or not
/// supported here.
const Kernels& kernels();

/// Those that this processor runs; the portable ones are first, the fastest are last.
std::vector<const Kernels*> kernels_here();

/// Names of the instruction sets in this build, separated by spaces, fastest first.
std::string compiled_isas();

}  // namespace hpcai500
