// What RoIAlign's kernels share. A block of threads has one roi and some of its channels: it computes the
// taps of the roi's rows and columns once, for all of its bins and channels, by the rule of axis_taps.cpp.
#pragma once

#include <cstdint>

#include "roi_geometry.h"
#include "roi_maps.cuh"

namespace hpcai500 {

/// Bins and taps of one axis that the block's table holds. Larger rois compute their taps where they use
/// them.
inline constexpr int table_bins = 64, table_taps = 256;

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

/// One axis of the block's roi and the taps of all of its bins, in shared memory: there they take no
/// registers.
template <class Real>
struct AxisTaps {
    RoiAxis<Real> axis;
    int bins, size;
    int step;  ///< of the table, from bin to bin
    int count[table_bins], pixel[table_taps];
    Real weight[table_taps];

    /// Sets the step, and returns whether the table has room. A bin has two taps for each sample, and no more
    /// than the pixels that it covers and those beside them (where rounding may add some).
    __device__ bool fits() {
        const Real length = axis.bin < 0 ? -axis.bin : axis.bin;
        const std::int64_t pixels = static_cast<std::int64_t>(length) + 5, most = 2 * axis.grid;
        const std::int64_t taps = most < pixels ? most : pixels;
        step = taps < table_taps ? static_cast<int>(taps) : table_taps + 1;
        return bins <= table_bins && bins * step <= table_taps;
    }
    __device__ void fill(int bin) {
        const RoiAxis<Real> own = axis;
        TapWalk<Real> walk(own, bin, size);
        int taps = 0, place;
        Real part;
        for (; walk.next(place, part); ++taps) {
            pixel[bin * step + taps] = place;
            weight[bin * step + taps] = part;
        }
        count[bin] = taps;
    }
    /// Calls visit(pixel, weight) for each tap of a bin.
    template <bool tabled, class Visit>
    __device__ void each_tap(int bin, const Visit& visit) const {
        if constexpr (tabled) {
            const int begin = bin * step, end = begin + count[bin];
            for (int tap = begin; tap < end; ++tap) visit(pixel[tap], weight[tap]);
        } else {
            TapWalk<Real> walk(axis, bin, size);
            int place;
            Real part;
            while (walk.next(place, part)) visit(place, part);
        }
    }
};

/// The roi of a block of threads, in shared memory.
template <class Real>
struct BlockRoi {
    AxisTaps<Real> rows, columns;
    std::int64_t image, channel_step, row_step;
    int level;
    bool valid;   ///< can be sampled
    bool tabled;  ///< its taps are in the tables

    /// To be called by all threads of the block, which then meet. They meet before, too: what some of them
    /// may still read is overwritten.
    __device__ void become(const Maps& maps, const Real* rois, std::int64_t index) {
        __syncthreads();
        if (threadIdx.x == 0) read(maps, rois + 5 * index, level_at(maps, index));
        __syncthreads();
        if (!tabled) return;
        const int bin = static_cast<int>(threadIdx.x);
        if (bin < rows.bins) rows.fill(bin);
        if (bin >= table_bins && bin < table_bins + columns.bins) columns.fill(bin - table_bins);
        __syncthreads();
    }

    /// Channel `first` of its image in its level.
    template <class Element>
    __device__ Element* image_of(const Maps& maps, std::int64_t first) const {
        const LevelMaps& own = maps.levels[level];
        return static_cast<Element*>(own.memory) + image * own.image_step + first * own.channel_step;
    }

    /// Calls visit(row, column, weight) for each pixel of bin (row_bin, column_bin).
    template <bool from_tables, class Visit>
    __device__ void each_pixel(int row_bin, int column_bin, const Visit& visit) const {
        rows.template each_tap<from_tables>(row_bin, [&](int row, Real row_weight) {
            columns.template each_tap<from_tables>(
                column_bin, [&](int column, Real weight) { visit(row, column, row_weight * weight); });
        });
    }

  private:
    __device__ void read(const Maps& maps, const Real* roi, int own_level) {
        valid = tabled = false;
        if (own_level == no_level || !(roi[0] >= 0 && roi[0] < static_cast<Real>(maps.images))) return;
        if (roi[0] != trunc(roi[0])) return;
        level = own_level;
        image = static_cast<std::int64_t>(roi[0]);
        const LevelMaps& own = maps.levels[own_level];
        const auto scale = static_cast<Real>(own.scale);
        channel_step = own.channel_step;
        row_step = own.row_step;
        rows.bins = maps.row_bins;
        rows.size = own.height;
        columns.bins = maps.column_bins;
        columns.size = own.width;
        valid =
            roi_axis(roi[1], roi[3], scale, columns.bins, maps.sampling_ratio, maps.aligned, columns.axis) &&
            roi_axis(roi[2], roi[4], scale, rows.bins, maps.sampling_ratio, maps.aligned, rows.axis);
        if (!valid) return;
        const bool rows_fit = rows.fits();
        tabled = columns.fits() && rows_fit;
    }
};

}  // namespace hpcai500
