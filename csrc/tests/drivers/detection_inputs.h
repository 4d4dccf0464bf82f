// Seeded hostile boxes and rois for the drivers of NMS and RoIAlign.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <vector>

#include "core/detection/roi_align.h"
#include "made_inputs.h"

namespace hpcai500::drivers {

/// Mostly coordinates of a small image, sometimes what no image has.
template <class Real>
Real coordinate(Random& random) {
    constexpr Real infinity = std::numeric_limits<Real>::infinity();
    const Real odd[] = {0,
                        static_cast<Real>(-0.0),
                        -1,
                        std::numeric_limits<Real>::quiet_NaN(),
                        infinity,
                        -infinity,
                        std::numeric_limits<Real>::max(),
                        std::numeric_limits<Real>::lowest(),
                        std::numeric_limits<Real>::denorm_min(),
                        static_cast<Real>(1e9),
                        static_cast<Real>(-16777216),
                        static_cast<Real>(16777216),
                        static_cast<Real>(16777217),
                        static_cast<Real>(1e5)};
    if (below(random, 3) == 0) return odd[random() % std::size(odd)];
    return static_cast<Real>(below(random, 4000) - 1000) / 100;
}

inline RoiAlignSpec some_spec(Random& random) {
    RoiAlignSpec spec;
    spec.type = static_cast<FeatureType>(below(random, 4));
    spec.layout = static_cast<FeatureLayout>(below(random, 2));
    spec.images = 1 + below(random, 3);
    spec.channels = below(random, 5) == 0 ? 100 : below(random, 20);
    spec.height = 1 + below(random, 20);
    spec.width = 1 + below(random, 30);
    spec.rois = below(random, 6);
    spec.pooled_height = 1 + below(random, 8);
    spec.pooled_width = 1 + below(random, 8);
    spec.spatial_scale = below(random, 4) == 0 ? 1e-3 : 0.5;
    spec.sampling_ratio = below(random, 20) == 0 ? most_samples : below(random, 5) - 1;
    spec.aligned = below(random, 2) == 0;
    return spec;
}

template <class Real>
std::vector<Real> some_rois(Random& random, const RoiAlignSpec& spec) {
    std::vector<Real> rois;
    for (std::int64_t i = 0; i < spec.rois; ++i) {
        rois.push_back(static_cast<Real>(below(random, static_cast<int>(spec.images))));
        for (int side = 0; side < 4; ++side) rois.push_back(coordinate<Real>(random));
    }
    return rois;
}

inline std::size_t item_size(FeatureType type) {
    return type == FeatureType::float64 ? 8 : type == FeatureType::float32 ? 4 : 2;
}

}  // namespace hpcai500::drivers
