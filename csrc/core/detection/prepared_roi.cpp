#include "prepared_roi.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace hpcai500 {
namespace {

template <class Real>
Roi<Real> read_roi(const RoiAlignSpec& spec, const void* rois, std::int64_t index) {
    const Real* values = static_cast<const Real*>(rois) + 5 * index;
    const auto refuse = [&](const std::string& why) {
        throw std::invalid_argument("rois[" + std::to_string(index) + "] is of image " +
                                    std::to_string(values[0]) + why);
    };
    if (!(values[0] >= 0 && values[0] < static_cast<Real>(spec.images)))
        refuse(", but the features are of " + std::to_string(spec.images) + " images, counted from 0");
    if (values[0] != std::trunc(values[0])) refuse(", which is not a whole number");
    Roi<Real> roi{};
    roi.image = static_cast<std::int64_t>(values[0]);
    const auto scale = static_cast<Real>(spec.spatial_scale);
    roi.valid = roi_axis(values[1], values[3], scale, spec.pooled_width, spec.sampling_ratio, spec.aligned,
                         roi.columns) &&
                roi_axis(values[2], values[4], scale, spec.pooled_height, spec.sampling_ratio, spec.aligned,
                         roi.rows);
    return roi;
}

}  // namespace

template <class Real>
std::vector<Roi<Real>> read_rois(const RoiAlignSpec& spec, const void* rois) {
    std::vector<Roi<Real>> result;
    result.reserve(static_cast<std::size_t>(spec.rois));
    for (std::int64_t index = 0; index < spec.rois; ++index)
        result.push_back(read_roi<Real>(spec, rois, index));
    return result;
}

template std::vector<Roi<float>> read_rois<float>(const RoiAlignSpec&, const void*);
template std::vector<Roi<double>> read_rois<double>(const RoiAlignSpec&, const void*);

}  // namespace hpcai500
