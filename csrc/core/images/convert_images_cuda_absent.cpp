// The device's twin in a build without CUDA.
#include "convert_images.h"
#include "core/cuda_device.h"

namespace hpcai500 {

void convert_images_cuda(const ImageConversion&, const void*, void*, int, void*) {
    throw BuiltWithoutCuda();
}

}  // namespace hpcai500
