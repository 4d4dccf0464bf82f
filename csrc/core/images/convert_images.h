// Whole batches of images, normalised by channel, cast and laid out in one pass: on the processor, and on a
// device for batches that were copied there as they were stored.
#pragma once

#include <cstdint>
#include <span>

namespace hpcai500 {

enum class ImageItem { float32, float16, bfloat16, uint8 };

/// (images, channels, pixels) or (images, pixels, channels), without gaps.
enum class ImageLayout { channels_first, channels_last };

inline constexpr int most_image_channels = 256;

/// What a value of each channel becomes: value * scale + bias.
struct ChannelFactors {
    float scale[most_image_channels];
    float bias[most_image_channels];
};

/// Values become (value * scale + bias), rounded once to float32 and, for the short types, once more to
/// nearest even, as the climate reader does it: NaN stays NaN, what float16 cannot hold becomes infinite.
struct ImageConversion {
    ImageItem from = ImageItem::float32, to = ImageItem::float32;  ///< never to uint8
    ImageLayout from_layout = ImageLayout::channels_first, to_layout = ImageLayout::channels_first;
    std::int64_t images = 0, channels = 0;
    std::int64_t pixels = 0;  ///< of one channel of one image: height x width
    ChannelFactors factors;
};

/// Of one value.
std::int64_t item_bytes(ImageItem item);

/// Sets the factors: scale 1 / std and bias -mean / std, each rounded to float32; without values, those that
/// change no number. Throws std::invalid_argument unless there are none or one for each channel, mean finite
/// and std above 0, and for more channels than most_image_channels.
void set_factors(ImageConversion& conversion, std::span<const double> mean, std::span<const double> std);

/// Source and output must not overlap. Throws std::invalid_argument for an output of uint8.
void convert_images(const ImageConversion& conversion, const void* source, void* out, int threads);

/// The same on a CUDA device, as one kernel; does not wait. `stream` is a cudaStream_t. The bits are those of
/// convert_images, but for which NaN a NaN becomes. Throws std::invalid_argument also for more blocks of
/// threads than a kernel can have, std::runtime_error for what CUDA refuses, BuiltWithoutCuda.
void convert_images_cuda(const ImageConversion& conversion, const void* source, void* out, int device,
                         void* stream);

}  // namespace hpcai500
