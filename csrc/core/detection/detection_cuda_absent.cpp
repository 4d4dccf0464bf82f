// The device's twins in a build without CUDA.
#include "core/cuda_device.h"
#include "nms.h"
#include "roi_align.h"

namespace hpcai500 {

template <class Real>
void nms_cuda(const NmsCudaCall<Real>&) {
    throw BuiltWithoutCuda();
}
template void nms_cuda<float>(const NmsCudaCall<float>&);
template void nms_cuda<double>(const NmsCudaCall<double>&);

std::size_t nms_cuda_workspace(std::span<const std::int64_t>) {
    throw BuiltWithoutCuda();
}

void roi_align_levels_cuda(std::span<const RoiLevel>, const void*, const std::int64_t*, void*, int, void*) {
    throw BuiltWithoutCuda();
}

void roi_align_levels_backward_cuda(std::span<const RoiLevel>, const void*, const void*, const std::int64_t*,
                                    int, void*) {
    throw BuiltWithoutCuda();
}

}  // namespace hpcai500
