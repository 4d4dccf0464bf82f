#include "roi_align.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "core/threads.h"
#include "core/vectors/kernels.h"
#include "prepared_roi.h"

namespace hpcai500 {
namespace {

// Rois whose taps are held at the same time.
constexpr std::size_t rois_at_a_time = 256;

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
        return kernels().detection.pool_float[static_cast<std::size_t>(spec.type)][layout];
    else
        return kernels().detection.pool_double[layout];
}

// Pools `channels` channels from `first` of one roi.
template <class Real>
void pool_roi(const RoiAlignSpec& spec, const void* features, const Roi<Real>& roi,
              const PreparedRoi<Real>& prepared, std::int64_t first, std::int64_t channels, void* out) {
    Scratch<Real>& scratch = thread_scratch<Real>();
    PoolCall<Real> call{};
    call.taps = prepared.taps(spec);
    const std::int64_t plane = spec.layout == FeatureLayout::channels_first ? spec.height * spec.width : 1;
    call.image =
        advance(features, spec, roi.image * spec.channels * spec.height * spec.width + first * plane);
    call.channels = channels;
    call.height = spec.height;
    call.width = spec.width;
    call.pooled = out;
    call.workspace = scratch.workspace(spec);
    call.narrow_workspace =
        scratch.narrow.reserve(static_cast<std::size_t>(spec.pooled_width) * channel_block);
    pool_of<Real>(spec)(call);
}

// Channels last: a roi's pixels are whole lines of memory, each read once.
template <class Real>
void forward_by_roi(const RoiAlignSpec& spec, const void* features, const std::vector<Roi<Real>>& rois,
                    void* pooled, int threads) {
    const std::int64_t size = spec.channels * bins_of(spec);
    parallel_for(spec.rois, threads, [&](std::int64_t index) {
        const Roi<Real>& roi = rois[static_cast<std::size_t>(index)];
        void* out = advance(pooled, spec, index * size);
        if (!roi.valid) return fill_nan<Real>(spec, out, size);
        PreparedRoi<Real>& prepared = thread_scratch<Real>().roi;
        prepared.prepare(spec, roi);
        pool_roi(spec, features, roi, prepared, 0, spec.channels, out);
    });
}

// Channels first: a plane stays in the cache while all rois are pooled from it.
template <class Real>
void forward_by_plane(const RoiAlignSpec& spec, const void* features, const std::vector<Roi<Real>>& rois,
                      void* pooled, int threads) {
    const std::int64_t bins = bins_of(spec);
    std::vector<PreparedRoi<Real>> prepared(std::min(rois.size(), rois_at_a_time));
    for (std::size_t begin = 0; begin < rois.size(); begin += rois_at_a_time) {
        const std::size_t count = std::min(rois.size() - begin, rois_at_a_time);
        parallel_for(static_cast<std::int64_t>(count), threads, [&](std::int64_t index) {
            const auto i = static_cast<std::size_t>(index);
            if (rois[begin + i].valid) prepared[i].prepare(spec, rois[begin + i]);
        });
        parallel_for(spec.images * spec.channels, threads, [&](std::int64_t plane) {
            const std::int64_t image = plane / spec.channels, channel = plane % spec.channels;
            for (std::size_t i = 0; i < count; ++i) {
                const Roi<Real>& roi = rois[begin + i];
                if (roi.image != image) continue;
                const auto index = static_cast<std::int64_t>(begin + i);
                void* out = advance(pooled, spec, (index * spec.channels + channel) * bins);
                if (roi.valid)
                    pool_roi(spec, features, roi, prepared[i], channel, 1, out);
                else
                    fill_nan<Real>(spec, out, bins);
            }
        });
    }
}

template <class Real>
void forward(const RoiAlignSpec& spec, const void* features, const void* roi_rows, void* pooled,
             int threads) {
    const std::vector<Roi<Real>> rois = read_rois<Real>(spec, roi_rows);
    if (spec.layout == FeatureLayout::channels_last)
        forward_by_roi(spec, features, rois, pooled, threads);
    else
        forward_by_plane(spec, features, rois, pooled, threads);
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

void validate_levels(std::span<const RoiLevel> levels) {
    check(!levels.empty() && levels.size() <= most_levels,
          "levels must be 1 to " + std::to_string(most_levels), std::to_string(levels.size()));
    for (const auto& [spec, memory] : levels) {
        validate(spec);
        RoiAlignSpec expected = levels[0].spec;
        expected.height = spec.height;
        expected.width = spec.width;
        expected.spatial_scale = spec.spatial_scale;
        if (spec != expected)
            throw std::invalid_argument("levels must be alike but for their height, width and spatial scale");
    }
}

void roi_align(const RoiAlignSpec& spec, const void* features, const void* rois, void* pooled, int threads) {
    validate(spec);
    if (spec.type == FeatureType::float64)
        forward<double>(spec, features, rois, pooled, threads);
    else
        forward<float>(spec, features, rois, pooled, threads);
}

}  // namespace hpcai500
