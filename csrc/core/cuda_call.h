// For .cu files only: every call is checked, and a device is current while its kernels are started.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace hpcai500 {

/// Why there is no device, and what to do; empty for any other error. Of a missing driver, CUDA itself says
/// that its version is insufficient.
inline std::string no_cuda_device(cudaError_t error) {
    if (error == cudaErrorNoDevice)
        return "no CUDA device: the driver shows this process none. Ask the scheduler for one, look at "
               "CUDA_VISIBLE_DEVICES, or use CPU tensors";
    if (error != cudaErrorInsufficientDriver) return "";
    int driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        return "no CUDA device: this process finds no NVIDIA driver. Run it where nvidia-smi lists a device "
               "(in "
               "a container: with --nv), or use CPU tensors";
    const auto release = [](int version) {
        return std::to_string(version / 1000) + '.' + std::to_string(version % 1000 / 10);
    };
    return "no CUDA device: the NVIDIA driver is for CUDA " + release(driver) + ", this build needs " +
           release(CUDART_VERSION) + ". Update the driver, or use CPU tensors";
}

/// Whether `error` is one that a kernel makes while it runs: the call that tells of it only came after it.
inline bool is_of_a_kernel(cudaError_t error) {
    return error == cudaErrorIllegalAddress || error == cudaErrorLaunchFailure ||
           error == cudaErrorMisalignedAddress || error == cudaErrorAssert;
}

/// Throws std::runtime_error with what failed and CUDA's message.
inline void check_cuda(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    // CUDA also keeps it for whoever asks next, which would be the next good call.
    static_cast<void>(cudaGetLastError());
    if (const std::string lacking = no_cuda_device(error); !lacking.empty())
        throw std::runtime_error(lacking);
    const char* const whose =
        is_of_a_kernel(error) ? "; of a kernel that was started before: CUDA_LAUNCH_BLOCKING=1 shows which"
                              : "";
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error) + " (" +
                             cudaGetErrorName(error) + ")" + whose);
}

/// Makes a device current, and what was current before at its end.
class CurrentDevice {
  public:
    explicit CurrentDevice(int device) : device_(device) {
        check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
        // Even where it changes nothing, setting a device would make a context on it.
        if (device_ != before_) check_cuda(cudaSetDevice(device_), "cudaSetDevice");
    }
    ~CurrentDevice() {
        if (device_ != before_) static_cast<void>(cudaSetDevice(before_));
    }
    CurrentDevice(const CurrentDevice&) = delete;
    CurrentDevice& operator=(const CurrentDevice&) = delete;

  private:
    int device_;
    int before_ = 0;
};

}  // namespace hpcai500
