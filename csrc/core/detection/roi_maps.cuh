// What RoIAlign's kernels are told of the features, and how rois and channels are divided among their blocks
// of threads.
#pragma once

#include <cstdint>
#include <span>

#include "core/cuda_launch.cuh"
#include "roi_align.h"
#include "roi_geometry.h"

namespace hpcai500 {

inline constexpr int roi_threads = 256;
/// Blocks that a multiprocessor is to have at a time: it bounds the registers, of which the rare large roi
/// would take more than all others need.
template <class Real>
inline constexpr int roi_blocks = sizeof(Real) == 4 ? 4 : 2;
/// Channels that a block of threads has.
inline constexpr int roi_channels = 64;
/// One level of a pyramid: its features, or their gradient. Steps are in elements.
struct LevelMaps {
    void* memory;
    std::int64_t image_step, channel_step, row_step;
    int height, width;
    double scale;
};

/// All that the kernels need of the specs, by value: the device has nothing to fetch before they start.
struct Maps {
    LevelMaps levels[most_levels];
    const std::int64_t* level_of;  ///< of each roi; or nullptr: all are of the first level
    std::int64_t images, channels, rois, column_step;
    int level_count;
    int row_bins, column_bins;
    int sampling_ratio;
    bool aligned;
};

/// `levels` are valid.
inline Maps maps_of(std::span<const RoiLevel> levels, const std::int64_t* level_of) {
    const RoiAlignSpec& shared = levels[0].spec;
    const bool channels_last = shared.layout == FeatureLayout::channels_last;
    Maps maps{};
    for (const auto& [spec, memory] : levels) {
        LevelMaps& level = maps.levels[maps.level_count++];
        level.memory = memory;
        level.image_step = spec.channels * spec.height * spec.width;
        level.channel_step = channels_last ? 1 : spec.height * spec.width;
        level.row_step = channels_last ? spec.channels * spec.width : spec.width;
        level.height = static_cast<int>(spec.height);
        level.width = static_cast<int>(spec.width);
        level.scale = spec.spatial_scale;
    }
    maps.level_of = level_of;
    maps.images = shared.images;
    maps.channels = shared.channels;
    maps.rois = shared.rois;
    maps.column_step = channels_last ? shared.channels : 1;
    maps.row_bins = shared.pooled_height;
    maps.column_bins = shared.pooled_width;
    maps.sampling_ratio = shared.sampling_ratio;
    maps.aligned = shared.aligned;
    return maps;
}

/// Whether all levels begin at an address of 16 bytes.
inline bool are_aligned(std::span<const RoiLevel> levels) {
    for (const RoiLevel& level : levels)
        if (reinterpret_cast<std::uintptr_t>(level.memory) % 16 != 0) return false;
    return true;
}

/// The level of a roi, or no_level where it does not exist.
inline constexpr int no_level = -1;
__device__ inline int level_at(const Maps& maps, std::int64_t roi) {
    if (maps.level_of == nullptr) return 0;
    const std::int64_t level = maps.level_of[roi];
    return level >= 0 && level < maps.level_count ? static_cast<int>(level) : no_level;
}

/// Parts of a roi that blocks of threads have, of all rois.
HPCAI500_HOST_DEVICE inline std::int64_t parts_of(const Maps& maps) {
    return maps.rois * ((maps.channels + roi_channels - 1) / roi_channels);
}

/// Blocks of threads go on to further parts: more blocks than this would only be started later.
inline unsigned blocks_for(std::int64_t parts) {
    constexpr std::int64_t most_blocks = 1 << 20;
    return static_cast<unsigned>(parts < most_blocks ? parts : most_blocks);
}

/// One roi and its channels [first, first + channels).
struct RoiPart {
    std::int64_t roi, first;
    int channels;
};

__device__ inline RoiPart part_at(const Maps& maps, std::int64_t index) {
    const std::int64_t parts = (maps.channels + roi_channels - 1) / roi_channels;
    const std::int64_t first = index % parts * roi_channels, left = maps.channels - first;
    return {index / parts, first, left < roi_channels ? static_cast<int>(left) : roi_channels};
}

}  // namespace hpcai500
