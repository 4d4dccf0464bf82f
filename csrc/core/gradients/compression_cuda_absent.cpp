// The device's twins in a build without CUDA.
#include "compression_cuda.h"
#include "core/cuda_device.h"

namespace hpcai500 {

std::size_t compression_cuda_workspace(std::int64_t, std::int64_t) {
    throw BuiltWithoutCuda();
}

std::int64_t compression_cuda_most_tensors() {
    throw BuiltWithoutCuda();
}

void pack_cuda(SourceTensors, void*, Wire, float, double*, const CudaPlace&) {
    throw BuiltWithoutCuda();
}

void unpack_cuda(const void*, TargetTensors, Wire, float, double*, const CudaPlace&) {
    throw BuiltWithoutCuda();
}

void quantise_cuda(SourceTensors, std::uint8_t*, float*, float, double*, const CudaPlace&) {
    throw BuiltWithoutCuda();
}

void dequantise_cuda(const std::uint8_t*, TargetTensors, float, bool, double*, const CudaPlace&) {
    throw BuiltWithoutCuda();
}

void layer_norms_cuda(SourceTensors, double*, const CudaPlace&) {
    throw BuiltWithoutCuda();
}

}  // namespace hpcai500
