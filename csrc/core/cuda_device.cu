#include <cuda_runtime_api.h>

#include "cuda_device.h"

namespace hpcai500 {

int cuda_device_count() noexcept {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    // The error is also kept for whoever asks next: it is answered here.
    static_cast<void>(cudaGetLastError());
    return 0;
}

const char* cuda_architectures() noexcept {
    return HPCAI500_CUDA_ARCHITECTURES;
}

}  // namespace hpcai500
