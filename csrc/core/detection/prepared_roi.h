// A roi, read, judged and made into taps: what RoIAlign's forward and backward passes share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "axis_taps.h"
#include "core/grow_buffer.h"
#include "detection_kernel.h"
#include "roi_align.h"

namespace hpcai500 {

constexpr std::size_t element_size(FeatureType type) {
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

constexpr std::int64_t bins_of(const RoiAlignSpec& spec) {
    return static_cast<std::int64_t>(spec.pooled_height) * spec.pooled_width;
}

/// `elements` values of the features' type behind `start`.
template <class Pointer>
Pointer* advance(Pointer* start, const RoiAlignSpec& spec, std::int64_t elements) {
    using Byte = std::conditional_t<std::is_const_v<Pointer>, const char, char>;
    return static_cast<Byte*>(start) + elements * static_cast<std::int64_t>(element_size(spec.type));
}

/// A roi, read and judged once.
template <class Real>
struct Roi {
    RoiAxis<Real> rows, columns;
    std::int64_t image;
    bool valid;  ///< has coordinates that can be sampled around
};

/// All rois, in their order; throws std::invalid_argument, with its number, at one whose image does not
/// exist.
template <class Real>
std::vector<Roi<Real>> read_rois(const RoiAlignSpec& spec, const void* rois);

extern template std::vector<Roi<float>> read_rois<float>(const RoiAlignSpec&, const void*);
extern template std::vector<Roi<double>> read_rois<double>(const RoiAlignSpec&, const void*);

/// The taps of one roi; reused from one roi to the next.
template <class Real>
class PreparedRoi {
  public:
    void prepare(const RoiAlignSpec& spec, const Roi<Real>& roi) {
        rows_.prepare(roi.rows, spec.pooled_height, static_cast<int>(spec.height));
        columns_.prepare(roi.columns, spec.pooled_width, static_cast<int>(spec.width));
    }
    RoiTaps<Real> taps(const RoiAlignSpec& spec) const {
        return {rows_.view(),      columns_.view(),  spec.pooled_height,
                spec.pooled_width, columns_.first(), columns_.end()};
    }

  private:
    AxisTaps<Real> rows_, columns_;
};

/// What one thread needs, reused from one roi to the next.
template <class Real>
struct Scratch {
    PreparedRoi<Real> roi;
    GrowBuffer<Real> sums, tile;
    GrowBuffer<std::uint16_t> narrow;

    Real* workspace(const RoiAlignSpec& spec) {
        const std::int64_t bins = spec.pooled_width;
        return sums.reserve(
            static_cast<std::size_t>(std::max(spec.width + channel_block + bins, bins * channel_block)));
    }
};

template <class Real>
Scratch<Real>& thread_scratch() {
    thread_local Scratch<Real> scratch;
    return scratch;
}

}  // namespace hpcai500
