#include "roi_align.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "axis_taps.h"
#include "core/grow_buffer.h"
#include "detection_kernel.h"
#include "parallel_for.h"

namespace hpcai500 {
namespace {

// A tile of the gradient that stays in a core's second-level cache while all rois are added to it.
constexpr std::int64_t tile_bytes = 1 << 20;
// Planes that share the taps of a roi where channels are first.
constexpr int plane_block = 8;

std::size_t element_size(FeatureType type) {
    switch (type) {
        case FeatureType::float16:
        case FeatureType::bfloat16:
            return 2;
        case FeatureType::float32:
            return 4;
        case FeatureType::float64:
            return 8;
    }
    return 8;
}

template <class Pointer>
Pointer* advance(Pointer* start, const RoiAlignSpec& spec, std::int64_t elements) {
    using Byte = std::conditional_t<std::is_const_v<Pointer>, const char, char>;
    return static_cast<Byte*>(start) + elements * static_cast<std::int64_t>(element_size(spec.type));
}

// A roi, read and judged once.
template <class Real>
struct Roi {
    RoiAxis<Real> rows, columns;
    std::int64_t image;
    bool valid;  ///< has coordinates that can be sampled around
};

template <class Real>
Roi<Real> read_roi(const RoiAlignSpec& spec, const void* rois, std::int64_t index) {
    const Real* values = static_cast<const Real*>(rois) + 5 * index;
    if (!(values[0] >= 0 && values[0] < static_cast<Real>(spec.images)))
        throw std::invalid_argument("rois[" + std::to_string(index) + "] is of image " +
                                    std::to_string(values[0]) + ", but the features are of " +
                                    std::to_string(spec.images) + " images, counted from 0");
    Roi<Real> roi{};
    roi.image = static_cast<std::int64_t>(values[0]);
    const auto scale = static_cast<Real>(spec.spatial_scale);
    roi.valid = roi_axis(values[1], values[3], scale, spec.pooled_width, spec.sampling_ratio, spec.aligned,
                         roi.columns) &&
                roi_axis(values[2], values[4], scale, spec.pooled_height, spec.sampling_ratio, spec.aligned,
                         roi.rows);
    return roi;
}

template <class Real>
std::vector<Roi<Real>> read_rois(const RoiAlignSpec& spec, const void* rois) {
    std::vector<Roi<Real>> result;
    result.reserve(static_cast<std::size_t>(spec.rois));
    for (std::int64_t index = 0; index < spec.rois; ++index)
        result.push_back(read_roi<Real>(spec, rois, index));
    return result;
}

// What one thread needs, reused from one roi to the next.
template <class Real>
struct Scratch {
    AxisTaps<Real> rows, columns;
    GrowBuffer<Real> sums, tile;
    GrowBuffer<std::uint16_t> narrow;

    RoiTaps<Real> prepare(const RoiAlignSpec& spec, const Roi<Real>& roi) {
        rows.prepare(roi.rows, spec.pooled_height, static_cast<int>(spec.height));
        columns.prepare(roi.columns, spec.pooled_width, static_cast<int>(spec.width));
        return {rows.view(), columns.view(), spec.pooled_height, spec.pooled_width};
    }

    Real* workspace(const RoiAlignSpec& spec) {
        const std::int64_t bins = static_cast<std::int64_t>(spec.pooled_width) * channel_block;
        return sums.reserve(static_cast<std::size_t>(std::max(spec.width + channel_block, bins)));
    }
};

template <class Real>
Scratch<Real>& thread_scratch() {
    thread_local Scratch<Real> scratch;
    return scratch;
}

template <class Real>
void fill_nan(const RoiAlignSpec& spec, void* out, std::int64_t count) {
    constexpr Real nan = std::numeric_limits<Real>::quiet_NaN();
    if constexpr (std::is_same_v<Real, float>) {
        if (spec.type != FeatureType::float32) {
            auto* halves = static_cast<std::uint16_t*>(out);
            std::fill(halves, halves + count, spec.type == FeatureType::float16 ? 0x7e00 : 0x7fc0);
            return;
        }
    }
    std::fill(static_cast<Real*>(out), static_cast<Real*>(out) + count, nan);
}

template <class Real>
auto pool_of(const RoiAlignSpec& spec) {
    const auto layout = static_cast<std::size_t>(spec.layout);
    if constexpr (std::is_same_v<Real, float>)
        return detection_kernel().pool_float[static_cast<std::size_t>(spec.type)][layout];
    else
        return detection_kernel().pool_double[layout];
}

template <class Real>
auto spread_of(const RoiAlignSpec& spec) {
    const auto layout = static_cast<std::size_t>(spec.layout);
    if constexpr (std::is_same_v<Real, float>)
        return detection_kernel().spread_float[static_cast<std::size_t>(spec.type)][layout];
    else
        return detection_kernel().spread_double[layout];
}

template <class Real>
void forward(const RoiAlignSpec& spec, const void* features, const void* roi_rows, void* pooled,
             int threads) {
    const std::vector<Roi<Real>> rois = read_rois<Real>(spec, roi_rows);
    const std::int64_t bins = static_cast<std::int64_t>(spec.pooled_height) * spec.pooled_width;
    const auto pool = pool_of<Real>(spec);
    parallel_for(spec.rois, threads, [&](std::int64_t index) {
        const Roi<Real>& roi = rois[static_cast<std::size_t>(index)];
        void* out = advance(pooled, spec, index * spec.channels * bins);
        if (!roi.valid) return fill_nan<Real>(spec, out, spec.channels * bins);
        Scratch<Real>& scratch = thread_scratch<Real>();
        PoolCall<Real> call{};
        call.taps = scratch.prepare(spec, roi);
        call.image = advance(features, spec, roi.image * spec.channels * spec.height * spec.width);
        call.channels = spec.channels;
        call.height = spec.height;
        call.width = spec.width;
        call.pooled = out;
        call.workspace = scratch.workspace(spec);
        call.narrow_workspace =
            scratch.narrow.reserve(static_cast<std::size_t>(spec.pooled_width) * channel_block);
        pool(call);
    });
}

// A part of the gradient that one thread makes from beginning to end.
struct Tile {
    std::int64_t image, first_channel, row_begin, row_end;
    int channels;
};

// How the gradient is cut. Each of its values is in one tile and gets the rois in their order: how it is cut,
// and who makes which tile, cannot be seen in the result.
class Tiling {
  public:
    Tiling(const RoiAlignSpec& spec, std::size_t value_size) : spec_(spec) {
        block_ = spec.layout == FeatureLayout::channels_last ? channel_block : plane_block;
        const std::int64_t row = spec.width * block_ * static_cast<std::int64_t>(value_size);
        rows_ = std::clamp<std::int64_t>(tile_bytes / row, 1, spec.height);
        bands_ = (spec.height + rows_ - 1) / rows_;
        blocks_ = (spec.channels + block_ - 1) / block_;
    }

    std::int64_t count() const { return spec_.images * blocks_ * bands_; }
    std::size_t values() const { return static_cast<std::size_t>(rows_ * spec_.width * block_); }

    Tile tile(std::int64_t index) const {
        const std::int64_t band = index % bands_, block = index / bands_ % blocks_;
        const std::int64_t first = block * block_, begin = band * rows_;
        return {index / bands_ / blocks_, first, begin, std::min(begin + rows_, spec_.height),
                static_cast<int>(std::min<std::int64_t>(block_, spec_.channels - first))};
    }

  private:
    const RoiAlignSpec& spec_;
    std::int64_t block_, rows_, bands_, blocks_;
};

// False where none of a roi's samples can reach the tile's rows.
template <class Real>
bool reaches(const RoiAlignSpec& spec, const Roi<Real>& roi, const Tile& tile) {
    if (!roi.valid || roi.image != tile.image) return false;
    const Real one_end = roi.rows.start;
    const Real other_end = one_end + static_cast<Real>(spec.pooled_height) * roi.rows.bin;
    // Samples lie between two pixels, are pushed inside at the image's edges, and have been rounded.
    const Real rounding = 8 * std::numeric_limits<Real>::epsilon();
    const Real slack = 2 + rounding * std::max(std::abs(one_end), std::abs(other_end));
    const Real low = std::min(one_end, other_end) - slack, high = std::max(one_end, other_end) + slack;
    return low < static_cast<Real>(tile.row_end) && high >= static_cast<Real>(tile.row_begin);
}

template <class Real>
void store_tile(const RoiAlignSpec& spec, const Tile& tile, const Real* values, void* out) {
    const auto store = [&](const Real* from, std::int64_t to, std::int64_t count) {
        void* place = advance(out, spec, to);
        if constexpr (std::is_same_v<Real, float>)
            detection_kernel().narrow[static_cast<std::size_t>(spec.type)](from, place, count);
        else
            std::copy(from, from + count, static_cast<double*>(place));
    };
    const std::int64_t rows = tile.row_end - tile.row_begin;
    if (spec.layout == FeatureLayout::channels_first) {
        for (int c = 0; c < tile.channels; ++c) {
            const std::int64_t plane = tile.image * spec.channels + tile.first_channel + c;
            store(values + c * rows * spec.width, (plane * spec.height + tile.row_begin) * spec.width,
                  rows * spec.width);
        }
        return;
    }
    const std::int64_t first_pixel = (tile.image * spec.height + tile.row_begin) * spec.width;
    for (std::int64_t pixel = 0; pixel < rows * spec.width; ++pixel)
        store(values + pixel * channel_block, (first_pixel + pixel) * spec.channels + tile.first_channel,
              tile.channels);
}

template <class Real>
void backward(const RoiAlignSpec& spec, const void* gradient, const void* roi_rows, void* out, int threads) {
    const std::vector<Roi<Real>> rois = read_rois<Real>(spec, roi_rows);
    const std::int64_t bins = static_cast<std::int64_t>(spec.pooled_height) * spec.pooled_width;
    const auto spread = spread_of<Real>(spec);
    const Tiling tiling(spec, sizeof(Real));
    parallel_for(tiling.count(), threads, [&](std::int64_t index) {
        const Tile tile = tiling.tile(index);
        Scratch<Real>& scratch = thread_scratch<Real>();
        SpreadCall<Real> call{};
        call.channels = tile.channels;
        call.row_begin = static_cast<int>(tile.row_begin);
        call.row_end = static_cast<int>(tile.row_end);
        call.width = spec.width;
        call.tile = scratch.tile.reserve(tiling.values());
        call.workspace = scratch.workspace(spec);
        std::fill(call.tile, call.tile + tiling.values(), static_cast<Real>(0));
        for (std::int64_t i = 0; i < spec.rois; ++i) {
            const Roi<Real>& roi = rois[static_cast<std::size_t>(i)];
            if (!reaches(spec, roi, tile)) continue;
            call.taps = scratch.prepare(spec, roi);
            call.gradient = advance(gradient, spec, (i * spec.channels + tile.first_channel) * bins);
            spread(call);
        }
        store_tile(spec, tile, call.tile, out);
    });
}

void check(bool right, const std::string& expected, const std::string& received) {
    if (!right) throw std::invalid_argument(expected + ", got " + received);
}

}  // namespace

void validate(const RoiAlignSpec& spec) {
    const auto side = [](std::int64_t value, const char* name) {
        check(value >= 1 && value <= static_cast<std::int64_t>(farthest_pixel),
              std::string("features' ") + name + " must be in [1, 2**24]", std::to_string(value));
    };
    side(spec.height, "height");
    side(spec.width, "width");
    check(spec.pooled_height >= 1 && spec.pooled_height <= most_bins && spec.pooled_width >= 1 &&
              spec.pooled_width <= most_bins,
          "output_size must be in [1, " + std::to_string(most_bins) + "]",
          std::to_string(spec.pooled_height) + " x " + std::to_string(spec.pooled_width));
    check(spec.sampling_ratio <= most_samples,
          "sampling_ratio must be at most " + std::to_string(most_samples) + " (0 or less: ceil(bin size))",
          std::to_string(spec.sampling_ratio));
    check(std::isfinite(spec.spatial_scale) && spec.spatial_scale > 0,
          "spatial_scale must be finite and above 0", std::to_string(spec.spatial_scale));
}

void roi_align(const RoiAlignSpec& spec, const void* features, const void* rois, void* pooled, int threads) {
    validate(spec);
    if (spec.type == FeatureType::float64)
        forward<double>(spec, features, rois, pooled, threads);
    else
        forward<float>(spec, features, rois, pooled, threads);
}

void roi_align_backward(const RoiAlignSpec& spec, const void* gradient, const void* rois,
                        void* features_gradient, int threads) {
    validate(spec);
    if (spec.type == FeatureType::float64)
        backward<double>(spec, gradient, rois, features_gradient, threads);
    else
        backward<float>(spec, gradient, rois, features_gradient, threads);
}

}  // namespace hpcai500
