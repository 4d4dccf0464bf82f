// For .cu files only: every call is checked, and a device is current while its kernels are started.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace hpcai500 {

/// Throws std::runtime_error with what failed and CUDA's message.
inline void check_cuda(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error) + " (" +
                             cudaGetErrorName(error) + ")");
}

/// Makes a device current, and what was current before at its end.
class CurrentDevice {
  public:
    explicit CurrentDevice(int device) {
        check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
        check_cuda(cudaSetDevice(device), "cudaSetDevice");
    }
    ~CurrentDevice() { static_cast<void>(cudaSetDevice(before_)); }
    CurrentDevice(const CurrentDevice&) = delete;
    CurrentDevice& operator=(const CurrentDevice&) = delete;

  private:
    int before_ = 0;
};

}  // namespace hpcai500
