// What is known about CUDA here. Nothing in this header needs CUDA: builds without it have the same
// functions.
#pragma once

#include <stdexcept>

namespace hpcai500 {

/// Devices that this process may use; 0 where there is no driver, or one too old, or the build is without
/// CUDA.
int cuda_device_count() noexcept;

/// What the kernels were compiled for, as CMake lists it, such as "80-real 90-real 90-virtual"; empty in a
/// build without CUDA.
const char* cuda_architectures() noexcept;

/// Thrown by every CUDA function of a build without CUDA.
class BuiltWithoutCuda : public std::runtime_error {
  public:
    BuiltWithoutCuda()
        : std::runtime_error(
              "built without CUDA: put nvcc on PATH (or set CUDACXX) and build again, or use CPU tensors") {}
};

}  // namespace hpcai500
