// RoIAlign on the device: the twin of roi_align.cpp. One thread for one bin of one channel.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/cuda_call.h"
#include "roi_align.h"
#include "roi_geometry.h"

namespace hpcai500 {
namespace {

constexpr int block_threads = 256;
// Threads go on to further bins: more blocks than this would only be started later.
constexpr std::int64_t most_blocks = 1 << 20;

// What the kernels need of a spec. Steps are in elements.
struct Maps {
    std::int64_t images, channels, rois;
    std::int64_t image_step, channel_step, row_step, column_step;
    int height, width, row_bins, column_bins;
    int sampling_ratio;
    double scale;
    bool aligned, channels_last;
};

Maps maps_of(const RoiAlignSpec& spec) {
    Maps maps{};
    maps.images = spec.images;
    maps.channels = spec.channels;
    maps.rois = spec.rois;
    maps.channels_last = spec.layout == FeatureLayout::channels_last;
    maps.image_step = spec.channels * spec.height * spec.width;
    maps.channel_step = maps.channels_last ? 1 : spec.height * spec.width;
    maps.column_step = maps.channels_last ? spec.channels : 1;
    maps.row_step = spec.width * maps.column_step;
    maps.height = static_cast<int>(spec.height);
    maps.width = static_cast<int>(spec.width);
    maps.row_bins = spec.pooled_height;
    maps.column_bins = spec.pooled_width;
    maps.sampling_ratio = spec.sampling_ratio;
    maps.scale = spec.spatial_scale;
    maps.aligned = spec.aligned;
    return maps;
}

std::int64_t bins_of(const Maps& maps) {
    return maps.rois * maps.channels * maps.row_bins * maps.column_bins;
}

// One bin of one channel of one roi, numbered so that neighbouring threads read neighbouring elements.
struct Bin {
    std::int64_t roi, channel;
    int row, column;
};

__device__ Bin bin_at(const Maps& maps, std::int64_t index) {
    const std::int64_t bins = static_cast<std::int64_t>(maps.row_bins) * maps.column_bins;
    std::int64_t channel, bin;
    if (maps.channels_last) {
        channel = index % maps.channels;
        bin = index / maps.channels % bins;
    } else {
        bin = index % bins;
        channel = index / bins % maps.channels;
    }
    return {index / bins / maps.channels, channel, static_cast<int>(bin / maps.column_bins),
            static_cast<int>(bin % maps.column_bins)};
}

__device__ std::int64_t pooled_place(const Maps& maps, const Bin& bin) {
    return ((bin.roi * maps.channels + bin.channel) * maps.row_bins + bin.row) * maps.column_bins +
           bin.column;
}

// Where a bin's samples are. False for a roi that cannot be sampled.
template <class Real>
struct Grid {
    RoiAxis<Real> rows, columns;
    SampleRange row_samples, column_samples;
    std::int64_t offset;  ///< of the image's channel
    Real count;
};

template <class Real>
__device__ bool prepare(const Maps& maps, const Real* rois, const Bin& bin, Grid<Real>& grid) {
    const Real* roi = rois + 5 * bin.roi;
    if (!(roi[0] >= 0 && roi[0] < static_cast<Real>(maps.images))) return false;
    const auto scale = static_cast<Real>(maps.scale);
    if (!roi_axis(roi[1], roi[3], scale, maps.column_bins, maps.sampling_ratio, maps.aligned, grid.columns) ||
        !roi_axis(roi[2], roi[4], scale, maps.row_bins, maps.sampling_ratio, maps.aligned, grid.rows))
        return false;
    grid.row_samples = samples_inside(grid.rows, bin.row, maps.height);
    grid.column_samples = samples_inside(grid.columns, bin.column, maps.width);
    grid.offset = static_cast<std::int64_t>(roi[0]) * maps.image_step + bin.channel * maps.channel_step;
    const std::int64_t count = grid.rows.grid * grid.columns.grid;
    grid.count = static_cast<Real>(count > 0 ? count : 1);
    return true;
}

// Calls visit(place, weight) for each of the four pixels around each sample of a bin.
template <class Real, class Visit>
__device__ void visit_taps(const Maps& maps, const Grid<Real>& grid, const Bin& bin, const Visit& visit) {
    for (std::int64_t i = grid.row_samples.begin; i < grid.row_samples.end; ++i) {
        const auto rows = between(ascending_sample(grid.rows, bin.row, i), maps.height);
        const std::int64_t low = grid.offset + rows.low * maps.row_step;
        const std::int64_t high = grid.offset + rows.high * maps.row_step;
        for (std::int64_t j = grid.column_samples.begin; j < grid.column_samples.end; ++j) {
            const auto columns = between(ascending_sample(grid.columns, bin.column, j), maps.width);
            const std::int64_t left = columns.low * maps.column_step, right = columns.high * maps.column_step;
            visit(low + left, (1 - rows.fraction) * (1 - columns.fraction));
            visit(low + right, (1 - rows.fraction) * columns.fraction);
            visit(high + left, rows.fraction * (1 - columns.fraction));
            visit(high + right, rows.fraction * columns.fraction);
        }
    }
}

template <class Element, class Real>
__global__ void __launch_bounds__(block_threads)
    pool(const Maps maps, std::int64_t bins, const Element* features, const Real* rois, Element* pooled) {
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * block_threads;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * block_threads + threadIdx.x; i < bins;
         i += step) {
        const Bin bin = bin_at(maps, i);
        Grid<Real> grid;
        Real sum = 0;
        if (prepare(maps, rois, bin, grid)) {
            visit_taps(maps, grid, bin, [&](std::int64_t place, Real weight) {
                sum += weight * static_cast<Real>(features[place]);
            });
            sum /= grid.count;
        } else {
            sum = static_cast<Real>(nan(""));
        }
        pooled[pooled_place(maps, bin)] = static_cast<Element>(sum);
    }
}

template <class Element, class Real>
__global__ void __launch_bounds__(block_threads)
    spread(const Maps maps, std::int64_t bins, const Element* gradient, const Real* rois,
           Real* features_gradient) {
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * block_threads;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * block_threads + threadIdx.x; i < bins;
         i += step) {
        const Bin bin = bin_at(maps, i);
        Grid<Real> grid;
        if (!prepare(maps, rois, bin, grid)) continue;
        const Real value = static_cast<Real>(gradient[pooled_place(maps, bin)]) / grid.count;
        visit_taps(maps, grid, bin, [&](std::int64_t place, Real weight) {
            if (weight != 0) atomicAdd(features_gradient + place, weight * value);
        });
    }
}

unsigned blocks_for(std::int64_t bins) {
    return static_cast<unsigned>(std::min((bins + block_threads - 1) / block_threads, most_blocks));
}

template <class Element, class Real>
void forward(const RoiAlignSpec& spec, const void* features, const void* rois, void* pooled,
             cudaStream_t stream) {
    const Maps maps = maps_of(spec);
    const std::int64_t bins = bins_of(maps);
    if (bins == 0) return;
    pool<<<blocks_for(bins), block_threads, 0, stream>>>(maps, bins, static_cast<const Element*>(features),
                                                         static_cast<const Real*>(rois),
                                                         static_cast<Element*>(pooled));
    check_cuda(cudaGetLastError(), "roi_align: starting pool");
}

template <class Element, class Real>
void backward(const RoiAlignSpec& spec, const void* gradient, const void* rois, void* out,
              cudaStream_t stream) {
    const Maps maps = maps_of(spec);
    const std::int64_t bins = bins_of(maps);
    const auto bytes = static_cast<std::size_t>(maps.images * maps.image_step) * sizeof(Real);
    if (bytes == 0) return;
    check_cuda(cudaMemsetAsync(out, 0, bytes, stream), "roi_align_backward: clearing");
    if (bins == 0) return;
    spread<<<blocks_for(bins), block_threads, 0, stream>>>(maps, bins, static_cast<const Element*>(gradient),
                                                           static_cast<const Real*>(rois),
                                                           static_cast<Real*>(out));
    check_cuda(cudaGetLastError(), "roi_align_backward: starting spread");
}

}  // namespace

void roi_align_cuda(const RoiAlignSpec& spec, const void* features, const void* rois, void* pooled,
                    int device, void* stream_pointer) {
    validate(spec);
    const CurrentDevice current(device);
    const auto stream = static_cast<cudaStream_t>(stream_pointer);
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

void roi_align_backward_cuda(const RoiAlignSpec& spec, const void* gradient, const void* rois,
                             void* features_gradient, int device, void* stream_pointer) {
    validate(spec);
    const CurrentDevice current(device);
    const auto stream = static_cast<cudaStream_t>(stream_pointer);
    switch (spec.type) {
        case FeatureType::float32:
            return backward<float, float>(spec, gradient, rois, features_gradient, stream);
        case FeatureType::float16:
            return backward<__half, float>(spec, gradient, rois, features_gradient, stream);
        case FeatureType::bfloat16:
            return backward<__nv_bfloat16, float>(spec, gradient, rois, features_gradient, stream);
        case FeatureType::float64:
            return backward<double, double>(spec, gradient, rois, features_gradient, stream);
    }
}

}  // namespace hpcai500
