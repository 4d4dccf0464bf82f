// RoIAlign on the device, backward: the twin of roi_align_backward.cpp.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "roi_align.h"
#include "roi_taps.cuh"
#include "roi_tile.cuh"

namespace hpcai500 {
namespace {

/// Channels that a thread adds where they are last.
constexpr int thread_channels = 4;

// Devices from 9.0 on add four floats at once, which lie side by side. Elsewhere a warp's threads add to
// places side by side, one after the other for each of their channels.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr bool adds_four = true;
template <class Real>
__device__ void add_four(Real* to, const Real (&values)[thread_channels]) {
    atomicAdd(reinterpret_cast<float4*>(to), make_float4(values[0], values[1], values[2], values[3]));
}
#else
constexpr bool adds_four = false;
template <class Real>
__device__ void add_four(Real*, const Real (&)[thread_channels]) {}
#endif

// Channels first: a thread for each bin of each channel.
template <bool tabled, class Element, class Real>
__device__ void spread_planes(const Maps& maps, const BlockRoi<Real>& roi, const Element* part, int count,
                              Real* image) {
    const int bins = maps.row_bins * maps.column_bins;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += roi_threads) {
        const int place = i % bins;
        const auto value = static_cast<Real>(part[i]);
        Real* const plane = image + i / bins * roi.channel_step;
        roi.template each_pixel<tabled>(place / maps.column_bins, place % maps.column_bins,
                                        [&](int row, int column, Real weight) {
                                            atomicAdd(plane + row * roi.row_step + column, weight * value);
                                        });
    }
}

template <class Element, class Real>
__global__ void __launch_bounds__(roi_threads, roi_blocks<Real>)
    spread_channels_first(const __grid_constant__ Maps maps, const Element* gradient, const Real* rois) {
    __shared__ BlockRoi<Real> roi;
    const int bins = maps.row_bins * maps.column_bins;
    for (std::int64_t index = blockIdx.x; index < parts_of(maps); index += gridDim.x) {
        const RoiPart own = part_at(maps, index);
        roi.become(maps, rois, own.roi);
        if (!roi.valid) continue;
        const Element* const part = gradient + (own.roi * maps.channels + own.first) * bins;
        Real* const image = roi.template image_of<Real>(maps, own.first);
        if (roi.tabled)
            spread_planes<true>(maps, roi, part, own.channels * bins, image);
        else
            spread_planes<false>(maps, roi, part, own.channels * bins, image);
    }
}

// Channels last: a thread for each bin of `own` channels. With own > 1 their places in a pixel begin at
// addresses of 16 bytes.
template <bool tabled, int own, class Element, class Real>
__device__ void spread_tile(const Maps& maps, const BlockRoi<Real>& roi, const Tile<Element>& tile,
                            const TileBins& bins, int channels, Real* image) {
    constexpr int groups = roi_channels / own;
    constexpr bool together = adds_four && own == thread_channels && std::is_same_v<Real, float>;
    for (int i = static_cast<int>(threadIdx.x); i < bins.count * groups; i += roi_threads) {
        const int bin = i / groups, first = together ? i % groups * own : i % groups;
        constexpr int step = together ? 1 : groups;
        if (first >= channels) continue;
        Real values[own];
        for (int k = 0; k < own; ++k) {
            const int channel = first + k * step;
            values[k] = channel < channels ? static_cast<Real>(tile.values[channel * bins.count + bin])
                                           : static_cast<Real>(0);
        }
        const int place = bins.begin + bin;
        roi.template each_pixel<tabled>(
            place / maps.column_bins, place % maps.column_bins, [&](int row, int column, Real weight) {
                Real* const pixel = image + row * roi.row_step + column * maps.column_step + first;
                if constexpr (together) {
                    const Real added[] = {weight * values[0], weight * values[1], weight * values[2],
                                          weight * values[3]};
                    add_four(pixel, added);
                } else {
                    for (int k = 0; k < own; ++k)
                        if (first + k * step < channels) atomicAdd(pixel + k * step, weight * values[k]);
                }
            });
    }
}

template <int own_channels, class Element, class Real>
__global__ void __launch_bounds__(roi_threads, roi_blocks<Real>)
    spread_channels_last(const __grid_constant__ Maps maps, const Element* gradient, const Real* rois) {
    __shared__ BlockRoi<Real> roi;
    __shared__ Tile<Element> tile;
    const int bins = maps.row_bins * maps.column_bins;
    for (std::int64_t index = blockIdx.x; index < parts_of(maps); index += gridDim.x) {
        const RoiPart own = part_at(maps, index);
        roi.become(maps, rois, own.roi);
        if (!roi.valid) continue;
        const Element* const part = gradient + (own.roi * maps.channels + own.first) * bins;
        Real* const image = roi.template image_of<Real>(maps, own.first);
        for (TileBins some{0, 0}; some.begin < bins; some.begin += tile_bins) {
            some.count = min(bins - some.begin, tile_bins);
            each_of_tile(part, own.channels, bins, some, [&]<int count>(std::int64_t from, int to) {
                using Moved = Pack<Element, count>;
                *reinterpret_cast<Moved*>(tile.values + to) = *reinterpret_cast<const Moved*>(part + from);
            });
            __syncthreads();
            if (roi.tabled)
                spread_tile<true, own_channels>(maps, roi, tile, some, own.channels, image);
            else
                spread_tile<false, own_channels>(maps, roi, tile, some, own.channels, image);
            __syncthreads();
        }
    }
}

template <class Element, class Real>
void backward(std::span<const RoiLevel> levels, const void* gradient_memory, const void* roi_memory,
              const std::int64_t* level_of, void* stream) {
    const Maps maps = maps_of(levels, level_of);
    for (int i = 0; i < maps.level_count; ++i) {
        const LevelMaps& level = maps.levels[i];
        const auto bytes = static_cast<std::size_t>(maps.images * level.image_step) * sizeof(Real);
        if (bytes == 0) return;
        check_cuda(cudaMemsetAsync(level.memory, 0, bytes, static_cast<cudaStream_t>(stream)),
                   "roi_align_backward: clearing");
    }
    const std::int64_t parts = parts_of(maps);
    if (parts == 0) return;
    const auto* const gradient = static_cast<const Element*>(gradient_memory);
    const auto* const rois = static_cast<const Real*>(roi_memory);
    const CudaLaunch launch{"roi_align_backward: starting spread", blocks_for(parts), roi_threads, stream};
    if (levels[0].spec.layout == FeatureLayout::channels_first)
        start(launch, spread_channels_first<Element, Real>, maps, gradient, rois);
    else if (maps.channels % thread_channels == 0 && are_aligned(levels))
        start(launch, spread_channels_last<thread_channels, Element, Real>, maps, gradient, rois);
    else
        start(launch, spread_channels_last<1, Element, Real>, maps, gradient, rois);
}

}  // namespace

void roi_align_levels_backward_cuda(std::span<const RoiLevel> levels, const void* gradient, const void* rois,
                                    const std::int64_t* level_of, int device, void* stream) {
    validate_levels(levels);
    const CurrentDevice current(device);
    switch (levels[0].spec.type) {
        case FeatureType::float32:
            return backward<float, float>(levels, gradient, rois, level_of, stream);
        case FeatureType::float16:
            return backward<__half, float>(levels, gradient, rois, level_of, stream);
        case FeatureType::bfloat16:
            return backward<__nv_bfloat16, float>(levels, gradient, rois, level_of, stream);
        case FeatureType::float64:
            return backward<double, double>(levels, gradient, rois, level_of, stream);
    }
}

}  // namespace hpcai500
