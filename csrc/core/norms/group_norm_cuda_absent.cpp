// The device's functions in a build without CUDA.
#include "core/cuda_device.h"
#include "group_norm.h"

namespace hpcai500 {

std::size_t group_norm_cuda_workspace(const GroupNormShape&) {
    throw BuiltWithoutCuda();
}

void group_norm_cuda(const GroupNormShape&, float, const GroupNormMemory&, const float*, void*, int, void*) {
    throw BuiltWithoutCuda();
}

void group_norm_backward_cuda(const GroupNormShape&, const GroupNormMemory&, const void*, void*, float*, int,
                              void*) {
    throw BuiltWithoutCuda();
}

}  // namespace hpcai500
