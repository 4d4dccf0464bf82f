#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "bindings.h"
#include "core/detection/nms.h"
#include "core/detection/roi_align.h"
#include "detection_arguments.h"

namespace py = pybind11;

namespace hpcai500::bindings {
namespace {

std::optional<py::array> optional_array(const py::object& object) {
    if (object.is_none()) return std::nullopt;
    if (!py::isinstance<py::array>(object)) throw py::type_error("groups must be a NumPy array or None");
    return py::reinterpret_borrow<py::array>(object);
}

template <class Real>
std::vector<std::int64_t> kept_boxes(const py::array& boxes, const py::array& scores, const void* groups,
                                     double iou_threshold, int threads) {
    const NmsInput<Real> input{static_cast<const Real*>(boxes.data()),
                               static_cast<const Real*>(scores.data()),
                               static_cast<const std::int64_t*>(groups), boxes.shape(0)};
    const ReleasedGil released;
    return nms(input, iou_threshold, threads);
}

py::array_t<std::int64_t> nms_indices(const py::array& boxes, const py::array& scores,
                                      const py::object& groups_or_none, double iou_threshold, int threads) {
    const std::optional<py::array> groups = optional_array(groups_or_none);
    const bool is_double = check_boxes(view_of(boxes, "boxes"));
    const std::int64_t count = boxes.shape(0);
    check_per_item(view_of(scores, "scores"), count, is_double ? "f8" : "f4");
    if (groups) check_per_item(view_of(*groups, "groups"), count, "i8");
    const auto run = is_double ? &kept_boxes<double> : &kept_boxes<float>;
    const auto kept = run(boxes, scores, groups ? groups->data() : nullptr, iou_threshold, threads);
    py::array_t<std::int64_t> result(static_cast<py::ssize_t>(kept.size()));
    std::copy(kept.begin(), kept.end(), result.mutable_data());
    return result;
}

void pool(const py::array& features, const py::array& rois, const py::array& out, double spatial_scale,
          int sampling_ratio, bool aligned, int threads) {
    RoiAlignSpec spec = roi_spec(view_of(features, "features"), view_of(rois, "rois"), view_of(out, "out"));
    set_sampling(spec, spatial_scale, sampling_ratio, aligned);
    void* const memory = const_cast<py::array&>(out).mutable_data();
    const ReleasedGil released;
    roi_align(spec, features.data(), rois.data(), memory, threads);
}

void spread(const py::array& gradient, const py::array& rois, const py::array& out, double spatial_scale,
            int sampling_ratio, bool aligned, int threads) {
    RoiAlignSpec spec = roi_spec(view_of(out, "out"), view_of(rois, "rois"), view_of(gradient, "gradient"));
    set_sampling(spec, spatial_scale, sampling_ratio, aligned);
    void* const memory = const_cast<py::array&>(out).mutable_data();
    const ReleasedGil released;
    roi_align_backward(spec, gradient.data(), rois.data(), memory, threads);
}

}  // namespace

void register_detection(py::module_& module) {
    module.def("nms", &nms_indices, py::arg("boxes"), py::arg("scores"), py::arg("groups"), py::kw_only(),
               py::arg("iou_threshold"), py::arg("threads"),
               "Indices of the boxes that stay, in falling order of score.");
    module.def("roi_align", &pool, py::arg("features"), py::arg("rois"), py::arg("out"), py::kw_only(),
               py::arg("spatial_scale"), py::arg("sampling_ratio"), py::arg("aligned"), py::arg("threads"),
               "Pools each roi of the features to `out`.");
    module.def("roi_align_backward", &spread, py::arg("gradient"), py::arg("rois"), py::arg("out"),
               py::kw_only(), py::arg("spatial_scale"), py::arg("sampling_ratio"), py::arg("aligned"),
               py::arg("threads"), "Writes the gradient by the features to `out`.");
}

}  // namespace hpcai500::bindings
