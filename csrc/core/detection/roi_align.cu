// RoIAlign on the device, forward: the twin of roi_align.cpp.
#include "roi_align.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "roi_taps.cuh"
#include "roi_tile.cuh"

namespace hpcai500 {
namespace {

template <class Element, class Real>
__device__ void fill_nan(Element* part, int count) {
    const auto none = static_cast<Element>(static_cast<Real>(nan("")));
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < count; i += roi_threads) part[i] = none;
}

// The bin of `wide` channels whose values in a pixel lie side by side from `channels` on.
template <bool tabled, int wide, class Element, class Real>
__device__ void pool_bin(const Maps& maps, const BlockRoi<Real>& roi, int bin, const Element* channels,
                         Real (&sums)[wide]) {
    for (int i = 0; i < wide; ++i) sums[i] = 0;
    roi.template each_pixel<tabled>(
        bin / maps.column_bins, bin % maps.column_bins, [&](int row, int column, Real weight) {
            const auto pixel = *reinterpret_cast<const Pack<Element, wide>*>(channels + row * roi.row_step +
                                                                             column * maps.column_step);
#pragma unroll
            for (int i = 0; i < wide; ++i) sums[i] = fma(weight, static_cast<Real>(pixel.values[i]), sums[i]);
        });
}

// Channels first: a thread for each bin of each channel, as they lie in the result.
template <bool tabled, class Element, class Real>
__device__ void pool_planes(const Maps& maps, const BlockRoi<Real>& roi, const Element* image, int count,
                            Element* part) {
    const int bins = maps.row_bins * maps.column_bins;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += roi_threads) {
        Real sum[1];
        pool_bin<tabled>(maps, roi, i % bins, image + i / bins * roi.channel_step, sum);
        part[i] = static_cast<Element>(sum[0]);
    }
}

template <class Element, class Real>
__global__ void __launch_bounds__(roi_threads, roi_blocks<Real>)
    pool_channels_first(const __grid_constant__ Maps maps, const Real* rois, Element* pooled) {
    __shared__ BlockRoi<Real> roi;
    const int bins = maps.row_bins * maps.column_bins;
    for (std::int64_t index = blockIdx.x; index < parts_of(maps); index += gridDim.x) {
        const RoiPart own = part_at(maps, index);
        Element* const part = pooled + (own.roi * maps.channels + own.first) * bins;
        roi.become(maps, rois, own.roi);
        const int count = own.channels * bins;
        if (!roi.valid) {
            fill_nan<Element, Real>(part, count);
            continue;
        }
        const Element* const image = roi.template image_of<const Element>(maps, own.first);
        if (roi.tabled)
            pool_planes<true>(maps, roi, image, count, part);
        else
            pool_planes<false>(maps, roi, image, count, part);
    }
}

// Channels last: a thread for each bin of `wide` channels. The result, where channels are not last, is turned
// round in a tile.
template <bool tabled, int wide, class Element, class Real>
__device__ void pool_tile(const Maps& maps, const BlockRoi<Real>& roi, const Element* image, int channels,
                          const TileBins& bins, Tile<Element>& tile) {
    constexpr int groups = roi_channels / wide;
    for (int i = static_cast<int>(threadIdx.x); i < bins.count * groups; i += roi_threads) {
        const int bin = i / groups, first = i % groups * wide;
        if (first >= channels) continue;
        Real sums[wide];
        pool_bin<tabled>(maps, roi, bins.begin + bin, image + first, sums);
        for (int channel = 0; channel < wide; ++channel)
            tile.values[(first + channel) * bins.count + bin] = static_cast<Element>(sums[channel]);
    }
}

template <int wide, class Element, class Real>
__global__ void __launch_bounds__(roi_threads, roi_blocks<Real>)
    pool_channels_last(const __grid_constant__ Maps maps, const Real* rois, Element* pooled) {
    __shared__ BlockRoi<Real> roi;
    __shared__ Tile<Element> tile;
    const int bins = maps.row_bins * maps.column_bins;
    for (std::int64_t index = blockIdx.x; index < parts_of(maps); index += gridDim.x) {
        const RoiPart own = part_at(maps, index);
        Element* const part = pooled + (own.roi * maps.channels + own.first) * bins;
        roi.become(maps, rois, own.roi);
        if (!roi.valid) {
            fill_nan<Element, Real>(part, own.channels * bins);
            continue;
        }
        const Element* const image = roi.template image_of<const Element>(maps, own.first);
        for (TileBins some{0, 0}; some.begin < bins; some.begin += tile_bins) {
            some.count = min(bins - some.begin, tile_bins);
            if (roi.tabled)
                pool_tile<true, wide>(maps, roi, image, own.channels, some, tile);
            else
                pool_tile<false, wide>(maps, roi, image, own.channels, some, tile);
            __syncthreads();
            each_of_tile(part, own.channels, bins, some, [&]<int count>(std::int64_t to, int from) {
                using Moved = Pack<Element, count>;
                *reinterpret_cast<Moved*>(part + to) = *reinterpret_cast<const Moved*>(tile.values + from);
            });
            __syncthreads();
        }
    }
}

template <class Element, class Real>
void forward(std::span<const RoiLevel> levels, const void* roi_memory, const std::int64_t* level_of,
             void* pooled_memory, void* stream) {
    constexpr int wide = 16 / sizeof(Element);
    const Maps maps = maps_of(levels, level_of);
    const std::int64_t parts = parts_of(maps);
    if (parts == 0) return;
    const auto* const rois = static_cast<const Real*>(roi_memory);
    auto* const pooled = static_cast<Element*>(pooled_memory);
    const CudaLaunch launch{"roi_align: starting pool", blocks_for(parts), roi_threads, stream};
    if (levels[0].spec.layout == FeatureLayout::channels_first)
        start(launch, pool_channels_first<Element, Real>, maps, rois, pooled);
    else if (maps.channels % wide == 0 && are_aligned(levels))
        start(launch, pool_channels_last<wide, Element, Real>, maps, rois, pooled);
    else
        start(launch, pool_channels_last<1, Element, Real>, maps, rois, pooled);
}

}  // namespace

void roi_align_levels_cuda(std::span<const RoiLevel> levels, const void* rois, const std::int64_t* level_of,
                           void* pooled, int device, void* stream) {
    validate_levels(levels);
    const CurrentDevice current(device);
    switch (levels[0].spec.type) {
        case FeatureType::float32:
            return forward<float, float>(levels, rois, level_of, pooled, stream);
        case FeatureType::float16:
            return forward<__half, float>(levels, rois, level_of, pooled, stream);
        case FeatureType::bfloat16:
            return forward<__nv_bfloat16, float>(levels, rois, level_of, pooled, stream);
        case FeatureType::float64:
            return forward<double, double>(levels, rois, level_of, pooled, stream);
    }
}

}  // namespace hpcai500
