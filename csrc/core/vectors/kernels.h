// The kernels of all jobs for one instruction set: kernels.inl, compiled once for each by kernels_*.cpp.
#pragma once

#include "core/climate/convert_kernel.h"
#include "core/detection/detection_kernel.h"
#include "core/gradients/compression_kernel.h"
#include "core/jpeg/baseline/kernel.h"
#include "core/jpeg/resize_kernel.h"

namespace hpcai500 {

struct Kernels {
    ResizeKernel resize;
    ConvertKernel convert;
    CompressionKernel compression;
    DetectionKernel detection;
    const baseline::BaselineKernel& baseline;
};

extern const Kernels portable_kernels, avx2_kernels, avx512_kernels, neon_kernels;

/// The ones for chosen_isa().
const Kernels& kernels();

}  // namespace hpcai500
