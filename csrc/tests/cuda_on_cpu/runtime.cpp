#include <cstdlib>
#include <cstring>

#include "cuda_runtime_api.h"

namespace {

// As CUDA's: what was refused is kept until it is asked for, and a good call leaves it there.
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t refused(cudaError_t error) {
    last_error = error;
    return error;
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
        case cudaSuccess:
            return "cudaSuccess";
        case cudaErrorMemoryAllocation:
            return "cudaErrorMemoryAllocation";
        case cudaErrorInvalidDevice:
            return "cudaErrorInvalidDevice";
        default:
            return "cudaErrorUnknown";
    }
}

const char* cudaGetErrorString(cudaError_t error) {
    return error == cudaSuccess ? "no error" : "refused by the stand-in for a device";
}

cudaError_t cudaGetLastError() {
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaDriverGetVersion(int* version) {
    const char* const older = std::getenv("HPCAI500_CUDA_ON_CPU_DRIVER");
    *version = older == nullptr ? CUDART_VERSION : std::atoi(older);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    return device == 0 ? cudaSuccess : refused(cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceSynchronize() {
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) {
    return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
    *memory = nullptr;
    if (bytes == 0) return cudaSuccess;
    *memory = std::malloc(bytes);
    if (*memory == nullptr) return refused(cudaErrorMemoryAllocation);
    std::memset(*memory, 0xa5, bytes);
    return cudaSuccess;
}

cudaError_t cudaFree(void* memory) {
    std::free(memory);
    return cudaSuccess;
}

cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
    if (bytes > 0) std::memset(memory, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t) {
    return cudaMemset(memory, value, bytes);
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
    if (bytes > 0) std::memmove(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
    return cudaMemcpy(to, from, bytes, kind);
}
