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
__device__ void pool_bin(const Maps& maps, const BlockRoi<Real>& roi, const RoiTables<Real>& tables, int bin,
                         const Element* channels, Real (&sums)[wide]) {
    for (int i = 0; i < wide; ++i) sums[i] = 0;
    roi.template each_pixel<tabled>(
        tables, bin / maps.column_bins, bin % maps.column_bins, [&](int row, int column, Real weight) {
            const auto pixel = *reinterpret_cast<const Pack<Element, wide>*>(channels + row * maps.row_step +
                                                                             column * maps.column_step);
#pragma unroll
            for (int i = 0; i < wide; ++i) sums[i] = fma(weight, static_cast<Real>(pixel.values[i]), sums[i]);
        });
}

// Channels first: a thread for each bin of each channel, as they lie in the result.
template <bool tabled, class Element, class Real>
__device__ void pool_planes(const Maps& maps, const BlockRoi<Real>& roi, const RoiTables<Real>& tables,
                            const Element* image, int count, Element* part) {
    const int bins = maps.row_bins * maps.column_bins;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += roi_threads) {
        Real sum[1];
        pool_bin<tabled>(maps, roi, tables, i % bins, image + i / bins * maps.channel_step, sum);
        part[i] = static_cast<Element>(sum[0]);
    }
}

template <class Element, class Real>
__global__ void __launch_bounds__(roi_threads, roi_blocks<Real>)
    pool_channels_first(const Maps maps, const Element* features, const Real* rois, Element* pooled) {
    __shared__ RoiTables<Real> tables;
    const int bins = maps.row_bins * maps.column_bins;
    for (std::int64_t index = blockIdx.x; index < parts_of(maps); index += gridDim.x) {
        const RoiPart own = part_at(maps, index);
        Element* const part = pooled + (own.roi * maps.channels + own.first) * bins;
        const BlockRoi<Real> roi(maps, rois, own.roi, tables);
        const Element* const image = features + roi.image * maps.image_step + own.first * maps.channel_step;
        const int count = own.channels * bins;
        if (!roi.valid)
            fill_nan<Element, Real>(part, count);
        else if (roi.tabled)
            pool_planes<true>(maps, roi, tables, image, count, part);
        else
            pool_planes<false>(maps, roi, tables, image, count, part);
        __syncthreads();
    }
}

// Channels last: a thread for each bin of `wide` channels. The result, where channels are not last, is turned
// round in a tile.
template <bool tabled, int wide, class Element, class Real>
__device__ void pool_tile(const Maps& maps, const BlockRoi<Real>& roi, const RoiTables<Real>& tables,
                          const Element* image, int channels, const TileBins& bins, Tile<Element>& tile) {
    constexpr int groups = roi_channels / wide;
    for (int i = static_cast<int>(threadIdx.x); i < bins.count * groups; i += roi_threads) {
        const int bin = i / groups, first = i % groups * wide;
        if (first >= channels) continue;
        Real sums[wide];
        pool_bin<tabled>(maps, roi, tables, bins.begin + bin, image + first, sums);
        for (int channel = 0; channel < wide; ++channel)
            tile.values[(first + channel) * bins.count + bin] = static_cast<Element>(sums[channel]);
    }
}

template <int wide, class Element, class Real>
__global__ void __launch_bounds__(roi_threads, roi_blocks<Real>)
    pool_channels_last(const Maps maps, const Element* features, const Real* rois, Element* pooled) {
    __shared__ RoiTables<Real> tables;
    __shared__ Tile<Element> tile;
    const int bins = maps.row_bins * maps.column_bins;
    for (std::int64_t index = blockIdx.x; index < parts_of(maps); index += gridDim.x) {
        const RoiPart own = part_at(maps, index);
        Element* const part = pooled + (own.roi * maps.channels + own.first) * bins;
        const BlockRoi<Real> roi(maps, rois, own.roi, tables);
        if (!roi.valid) {
            fill_nan<Element, Real>(part, own.channels * bins);
            continue;
        }
        const Element* const image = features + roi.image * maps.image_step + own.first;
        for (TileBins some{0, 0}; some.begin < bins; some.begin += tile_bins) {
            some.count = min(bins - some.begin, tile_bins);
            if (roi.tabled)
                pool_tile<true, wide>(maps, roi, tables, image, own.channels, some, tile);
            else
                pool_tile<false, wide>(maps, roi, tables, image, own.channels, some, tile);
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
void forward(const RoiAlignSpec& spec, const void* feature_memory, const void* roi_memory,
             void* pooled_memory, void* stream) {
    constexpr int wide = 16 / sizeof(Element);
    const Maps maps = maps_of(spec);
    const std::int64_t parts = parts_of(maps);
    if (parts == 0) return;
    const auto* const features = static_cast<const Element*>(feature_memory);
    const auto* const rois = static_cast<const Real*>(roi_memory);
    auto* const pooled = static_cast<Element*>(pooled_memory);
    const CudaLaunch launch{"roi_align: starting pool", blocks_for(parts), roi_threads, stream};
    if (spec.layout == FeatureLayout::channels_first)
        start(launch, pool_channels_first<Element, Real>, maps, features, rois, pooled);
    else if (maps.channels % wide == 0 && reinterpret_cast<std::uintptr_t>(features) % 16 == 0)
        start(launch, pool_channels_last<wide, Element, Real>, maps, features, rois, pooled);
    else
        start(launch, pool_channels_last<1, Element, Real>, maps, features, rois, pooled);
}

}  // namespace

void roi_align_cuda(const RoiAlignSpec& spec, const void* features, const void* rois, void* pooled,
                    int device, void* stream) {
    validate(spec);
    const CurrentDevice current(device);
    switch (spec.type) {
        case FeatureType::float32:
            return forward<float, float>(spec, features, rois, pooled, stream);
        case FeatureType::float16:
            return forward<__half, float>(spec, features, rois, pooled, stream);
        case FeatureType::bfloat16:
            return forward<__nv_bfloat16, float>(spec, features, rois, pooled, stream);
        case FeatureType::float64:
            return forward<double, double>(spec, features, rois, pooled, stream);
    }
}

}  // namespace hpcai500
