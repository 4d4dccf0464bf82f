// Group norm (Wu and He 2018) on a CUDA device, for images whose channels are last, as convolutions want
// them:
//   y = (x - mean) * inverse * weight + bias,   inverse = 1 / sqrt(variance + epsilon)
// with the mean and the biased variance of each group of channels of each image, over its pixels. Sums and
// statistics are float32 or better whatever the type of the images; no sum depends on the order of threads.
// The twin is torch's nn.GroupNorm, which lays images out channels first.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hpcai500 {

enum class NormItem { float32, float16, bfloat16 };

/// (images, pixels, channels), with nothing between its values.
struct GroupNormShape {
    NormItem item;
    std::int64_t images, pixels;
    int channels;  ///< a multiple of 8
    int groups;    ///< a divisor of `channels`
};

/// Addresses on the device. Those of images are multiples of 16 bytes.
struct GroupNormMemory {
    const void* images;
    const float* weight;  ///< (channels,)
    float* moments;       ///< (2, images, groups): each group's mean, then its inverse
    void* workspace;
};

/// Device memory that both functions need for their own sums, in bytes.
std::size_t group_norm_cuda_workspace(const GroupNormShape& shape);

/// Queues three kernels that write `moments` and `out`, the latter like the images. Throws
/// std::invalid_argument for a shape that is too large, std::runtime_error for what CUDA says.
void group_norm_cuda(const GroupNormShape& shape, float epsilon, const GroupNormMemory& memory,
                     const float* bias, void* out, int device, void* stream);

/// Queues three kernels that write the gradient of the images, and `sums` (2, images, channels): over each
/// image's pixels, of the gradient and of the gradient times the normalised image. Their sums over images are
/// the gradients of bias and weight. `moments` are those that group_norm_cuda wrote.
void group_norm_backward_cuda(const GroupNormShape& shape, const GroupNormMemory& memory,
                              const void* gradient, void* out, float* sums, int device, void* stream);

}  // namespace hpcai500
