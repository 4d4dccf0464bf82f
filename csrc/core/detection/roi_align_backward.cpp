#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "core/threads.h"
#include "core/vectors/kernels.h"
#include "prepared_roi.h"
#include "roi_align.h"

namespace hpcai500 {
namespace {

// A tile of the gradient that stays in a core's second-level cache while all rois are added to it.
constexpr std::int64_t tile_bytes = 1 << 20;
// Planes that share the taps of a roi where channels are first, backward.
constexpr int plane_block = 8;

template <class Real>
auto spread_of(const RoiAlignSpec& spec) {
    const auto layout = static_cast<std::size_t>(spec.layout);
    if constexpr (std::is_same_v<Real, float>)
        return kernels().detection.spread_float[static_cast<std::size_t>(spec.type)][layout];
    else
        return kernels().detection.spread_double[layout];
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
            kernels().detection.narrow[static_cast<std::size_t>(spec.type)](from, place, count);
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
    const std::int64_t bins = bins_of(spec);
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
            scratch.roi.prepare(spec, roi);
            call.taps = scratch.roi.taps(spec);
            call.gradient = advance(gradient, spec, (i * spec.channels + tile.first_channel) * bins);
            spread(call);
        }
        store_tile(spec, tile, call.tile, out);
    });
}

}  // namespace

void roi_align_backward(const RoiAlignSpec& spec, const void* gradient, const void* rois,
                        void* features_gradient, int threads) {
    validate(spec);
    if (spec.type == FeatureType::float64)
        backward<double>(spec, gradient, rois, features_gradient, threads);
    else
        backward<float>(spec, gradient, rois, features_gradient, threads);
}

}  // namespace hpcai500
