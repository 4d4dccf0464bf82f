// How every kernel is started: with the arguments that it declares, on the caller's stream, and with a look
// at what CUDA said. The only place that would have to know another way to start one (csrc/tests/cuda_on_cpu/
// does).
#pragma once

#include <cuda_runtime_api.h>

#include "cuda_call.h"

namespace hpcai500 {

/// Blocks of threads, the threads of each, and where they queue. `what` begins the message of an error, such
/// as "pack: starting cast_tiles".
struct CudaLaunch {
    const char* what;
    dim3 blocks;
    unsigned threads;
    void* stream;  ///< a cudaStream_t
};

#ifndef HPCAI500_CUDA_ON_CPU

/// Puts `kernel` on the stream and returns at once. Arguments convert to the kernel's parameters as in a
/// call. Throws std::runtime_error.
template <class... Parameters, class... Arguments>
void start(const CudaLaunch& launch, void (*kernel)(Parameters...), Arguments&&... arguments) {
    kernel<<<launch.blocks, launch.threads, 0, static_cast<cudaStream_t>(launch.stream)>>>(
        static_cast<Arguments&&>(arguments)...);
    check_cuda(cudaGetLastError(), launch.what);
}

#endif

}  // namespace hpcai500

#ifdef HPCAI500_CUDA_ON_CPU
#include "tests/cuda_on_cpu/start.h"
#endif
