// RoIAlign (He et al. 2017, Mask R-CNN, section 3), forward and backward, by the rule of torchvision's
// roi_align.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace hpcai500 {

enum class FeatureType { float32, float16, bfloat16, float64 };
enum class FeatureLayout { channels_first, channels_last };

/// What is pooled, and how. Rois are rows [image, x1, y1, x2, y2], float64 where the features are and float32
/// elsewhere; sums are kept in the rois' type. `sampling_ratio` samples a bin and axis; 0 or less takes
/// ceil(bin size). `aligned` shifts by half a pixel and lets a roi be smaller than one pixel.
struct RoiAlignSpec {
    FeatureType type = FeatureType::float32;
    FeatureLayout layout = FeatureLayout::channels_first;
    std::int64_t images = 0, channels = 0, height = 0, width = 0;
    std::int64_t rois = 0;
    int pooled_height = 7, pooled_width = 7;
    double spatial_scale = 1;
    int sampling_ratio = -1;
    bool aligned = false;

    bool operator==(const RoiAlignSpec&) const = default;
};

/// Most bins on an axis, and most samples of a bin on an axis.
inline constexpr int most_bins = 1024;
inline constexpr int most_samples = 1024;

/// Throws std::invalid_argument, with what is allowed and what came.
void validate(const RoiAlignSpec& spec);

/// Pools each roi to `pooled`, (rois, channels, pooled_height, pooled_width), always channels first.
///
/// A roi whose scaled coordinates are not finite, or beyond 2^24 pixels, gives NaN. One with an end before
/// its start gives what its samples (in reverse) give, and 0 where the sampling ratio is taken from its size.
/// Samples outside the image by more than a pixel count as 0. Time per roi is bounded by the image's pixels
/// and the bins' samples, whatever its coordinates. Throws std::invalid_argument where a roi's image does not
/// exist.
///
/// Every value is computed by the same operations whatever `threads`, the layout's neighbours and the
/// processor.
void roi_align(const RoiAlignSpec& spec, const void* features, const void* rois, void* pooled, int threads);

/// Gradient of roi_align by its features, from `gradient`, which is shaped as `pooled`. Writes all of
/// `features_gradient`. A roi that gave NaN adds nothing. The rois are added in their order: the same bits
/// for any number of threads.
void roi_align_backward(const RoiAlignSpec& spec, const void* gradient, const void* rois,
                        void* features_gradient, int threads);

/// One level of a pyramid on a CUDA device: how it is pooled, and the memory of its features or of their
/// gradient.
struct RoiLevel {
    RoiAlignSpec spec;
    void* memory;
};

/// Most levels that one call takes: a kernel is started with all of them among its arguments.
inline constexpr int most_levels = 8;

/// Throws std::invalid_argument unless there are 1 to most_levels levels, all valid, and alike but for their
/// height, width and spatial scale.
void validate_levels(std::span<const RoiLevel> levels);

/// roi_align on a CUDA device, of all levels at once: roi k from levels[level_of[k]], or with nullptr from
/// the first. All pointers but `levels` are the device's, `stream` is a cudaStream_t; returns before the
/// device is done. A roi whose image or level does not exist gives NaN (to find it, the device would have to
/// be waited for). Throws std::runtime_error with CUDA's message.
void roi_align_levels_cuda(std::span<const RoiLevel> levels, const void* rois, const std::int64_t* level_of,
                           void* pooled, int device, void* stream);

/// Writes all of every level's memory, which is float64 where the gradient is and float32 elsewhere. Threads
/// add to it in no fixed order: the last bits differ from run to run.
void roi_align_levels_backward_cuda(std::span<const RoiLevel> levels, const void* gradient, const void* rois,
                                    const std::int64_t* level_of, int device, void* stream);

/// The same for one level, with roi_align's arguments.
inline void roi_align_cuda(const RoiAlignSpec& spec, const void* features, const void* rois, void* pooled,
                           int device, void* stream) {
    const RoiLevel level{spec, const_cast<void*>(features)};  // only read
    roi_align_levels_cuda({&level, 1}, rois, nullptr, pooled, device, stream);
}
inline void roi_align_backward_cuda(const RoiAlignSpec& spec, const void* gradient, const void* rois,
                                    void* features_gradient, int device, void* stream) {
    const RoiLevel level{spec, features_gradient};
    roi_align_levels_backward_cuda({&level, 1}, gradient, rois, nullptr, device, stream);
}

}  // namespace hpcai500
