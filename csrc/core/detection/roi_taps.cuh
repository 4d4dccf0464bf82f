// What RoIAlign's kernels share. A block of threads has one roi and some of its channels: it computes the
// taps of the roi's rows and columns once, for all of its bins and channels, by the rule of axis_taps.cpp.
#pragma once

#include <cstdint>

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
/// Bins and taps of one axis that the block's table holds. Larger rois compute their taps where they use
/// them.
inline constexpr int table_bins = 64, table_taps = 256;

/// What the kernels need of a spec. Steps are in elements.
struct Maps {
    std::int64_t images, channels, rois;
    std::int64_t image_step, channel_step, row_step, column_step;
    int height, width, row_bins, column_bins;
    int sampling_ratio;
    double scale;
    bool aligned;
};

inline Maps maps_of(const RoiAlignSpec& spec) {
    const bool channels_last = spec.layout == FeatureLayout::channels_last;
    Maps maps{};
    maps.images = spec.images;
    maps.channels = spec.channels;
    maps.rois = spec.rois;
    maps.image_step = spec.channels * spec.height * spec.width;
    maps.channel_step = channels_last ? 1 : spec.height * spec.width;
    maps.column_step = channels_last ? spec.channels : 1;
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

/// Gives the taps of one bin in the order of their pixels; samples that share a pixel share its tap.
template <class Real>
class TapWalk {
  public:
    __device__ TapWalk(const RoiAxis<Real>& axis, int bin, int size) : axis_(axis), bin_(bin), size_(size) {
        // No bin has more than 2^25 samples: int spares registers.
        const SampleRange inside = samples_inside(axis, bin, size);
        sample_ = static_cast<int>(inside.begin);
        end_ = static_cast<int>(inside.end);
    }

    __device__ bool next(int& pixel, Real& weight) {
        // Takes samples in until one lies behind the pixel whose tap comes next.
        for (; sample_ < end_; ++sample_) {
            const auto place = between(ascending_sample(axis_, bin_, sample_), size_);
            if (taps_ > 0 && place.low > pixel_) break;
            if (taps_ == 0) begin_at(place.low);
            low_ += 1 - place.fraction;
            if (place.high == place.low) continue;
            high_ += place.fraction;
            taps_ = 2;
        }
        if (taps_ == 0) return false;
        pixel = pixel_++;
        weight = low_ / static_cast<Real>(axis_.grid);
        low_ = high_;
        high_ = 0;
        --taps_;
        return true;
    }

  private:
    __device__ void begin_at(int pixel) {
        pixel_ = pixel;
        low_ = high_ = 0;
        taps_ = 1;
    }

    const RoiAxis<Real>& axis_;
    int bin_, size_, sample_, end_;
    int pixel_ = 0, taps_ = 0;  ///< the next tap's pixel; how many taps wait, 2 with the pixel behind it
    Real low_ = 0, high_ = 0;
};

/// The taps of all bins of one axis, in shared memory.
template <class Real>
struct AxisTable {
    int count[table_bins], pixel[table_taps];
    Real weight[table_taps];
};

/// The axis of the block's roi, the same for all of its threads.
template <class Real>
struct TableAxis {
    RoiAxis<Real> axis;
    int bins, size;
    int step;  ///< of the table, from bin to bin

    /// A bin has two taps for each sample, and no more than the pixels that it covers and those beside them
    /// (where rounding may add some).
    __device__ bool fits() {
        const Real length = axis.bin < 0 ? -axis.bin : axis.bin;
        const std::int64_t pixels = static_cast<std::int64_t>(length) + 5, most = 2 * axis.grid;
        const std::int64_t taps = most < pixels ? most : pixels;
        step = taps < table_taps ? static_cast<int>(taps) : table_taps + 1;
        return bins <= table_bins && bins * step <= table_taps;
    }
    __device__ void fill(AxisTable<Real>& table, int bin) const {
        TapWalk<Real> walk(axis, bin, size);
        int count = 0, pixel;
        Real weight;
        for (; walk.next(pixel, weight); ++count) {
            table.pixel[bin * step + count] = pixel;
            table.weight[bin * step + count] = weight;
        }
        table.count[bin] = count;
    }
    /// Calls visit(pixel, weight) for each tap of a bin.
    template <bool tabled, class Visit>
    __device__ void each_tap(const AxisTable<Real>& table, int bin, const Visit& visit) const {
        if constexpr (tabled) {
            const int begin = bin * step, end = begin + table.count[bin];
            for (int tap = begin; tap < end; ++tap) visit(table.pixel[tap], table.weight[tap]);
        } else {
            TapWalk<Real> walk(axis, bin, size);
            int pixel;
            Real weight;
            while (walk.next(pixel, weight)) visit(pixel, weight);
        }
    }
};

template <class Real>
struct RoiTables {
    AxisTable<Real> rows, columns;
};

/// The roi of a block of threads.
template <class Real>
struct BlockRoi {
    TableAxis<Real> rows, columns;
    std::int64_t image;
    bool valid;   ///< can be sampled
    bool tabled;  ///< its taps are in the tables

    /// To be called by all threads of the block, which then meet; the tables are no longer read by any.
    __device__ BlockRoi(const Maps& maps, const Real* rois, std::int64_t index, RoiTables<Real>& tables)
        : image(0), valid(false), tabled(false) {
        const Real* const roi = rois + 5 * index;
        const auto scale = static_cast<Real>(maps.scale);
        rows.bins = maps.row_bins;
        rows.size = maps.height;
        columns.bins = maps.column_bins;
        columns.size = maps.width;
        if (!(roi[0] >= 0 && roi[0] < static_cast<Real>(maps.images))) return;
        image = static_cast<std::int64_t>(roi[0]);
        valid =
            roi_axis(roi[1], roi[3], scale, columns.bins, maps.sampling_ratio, maps.aligned, columns.axis) &&
            roi_axis(roi[2], roi[4], scale, rows.bins, maps.sampling_ratio, maps.aligned, rows.axis);
        if (!valid) return;
        const bool rows_fit = rows.fits();
        tabled = columns.fits() && rows_fit;
        if (!tabled) return;
        const int bin = static_cast<int>(threadIdx.x);
        if (bin < rows.bins) rows.fill(tables.rows, bin);
        if (bin >= table_bins && bin < table_bins + columns.bins)
            columns.fill(tables.columns, bin - table_bins);
        __syncthreads();
    }

    /// Calls visit(row, column, weight) for each pixel of bin (row_bin, column_bin).
    template <bool from_tables, class Visit>
    __device__ void each_pixel(const RoiTables<Real>& tables, int row_bin, int column_bin,
                               const Visit& visit) const {
        rows.template each_tap<from_tables>(tables.rows, row_bin, [&](int row, Real row_weight) {
            columns.template each_tap<from_tables>(tables.columns, column_bin, [&](int column, Real weight) {
                visit(row, column, row_weight * weight);
            });
        });
    }
};

}  // namespace hpcai500
