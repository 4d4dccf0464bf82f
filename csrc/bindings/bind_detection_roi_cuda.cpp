#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bindings.h"
#include "core/detection/roi_align.h"
#include "device_array.h"

namespace py = pybind11;

namespace hpcai500::bindings {
namespace {

void* stream_of(std::uintptr_t stream) {
    return reinterpret_cast<void*>(stream);
}

void pool(const py::object& features_object, const py::object& rois_object, const py::object& out_object,
          double spatial_scale, int sampling_ratio, bool aligned, int device, std::uintptr_t stream) {
    const DeviceArray features = device_array(features_object, "features");
    const DeviceArray rois = device_array(rois_object, "rois"), out = device_array(out_object, "out");
    RoiAlignSpec spec = roi_spec(features.view, rois.view, out.view);
    set_sampling(spec, spatial_scale, sampling_ratio, aligned);
    void* const memory = writable(out);
    const ReleasedGil released;
    roi_align_cuda(spec, features.data, rois.data, memory, device, stream_of(stream));
}

// Gradients are summed in float32, or float64 where `type` is; else as memory of `type`.
DeviceArray summed_array(const py::handle& object, const std::string& name, const std::string& type) {
    DeviceArray array = device_array(object, name);
    const std::string summed = type == "f8" ? "f8" : "f4";
    if (array.view.type != summed)
        throw py::value_error(name + " must have type " + summed + ", in which the gradient is summed, got " +
                              array.view.type);
    array.view.type = type;
    return array;
}

void spread(const py::object& gradient_object, const py::object& rois_object, const py::object& out_object,
            double spatial_scale, int sampling_ratio, bool aligned, int device, std::uintptr_t stream) {
    const DeviceArray gradient = device_array(gradient_object, "gradient");
    const DeviceArray rois = device_array(rois_object, "rois");
    const DeviceArray out = summed_array(out_object, "out", gradient.view.type);
    RoiAlignSpec spec = roi_spec(out.view, rois.view, gradient.view);
    set_sampling(spec, spatial_scale, sampling_ratio, aligned);
    void* const memory = writable(out);
    const ReleasedGil released;
    roi_align_backward_cuda(spec, gradient.data, rois.data, memory, device, stream_of(stream));
}

/// How the levels of a pyramid are pooled.
struct LevelSampling {
    std::vector<double> spatial_scales;
    int sampling_ratio;
    bool aligned;
};

std::vector<RoiLevel> checked_levels(const std::vector<DeviceArray>& levels, const ArrayView& rois,
                                     const ArrayView& pooled, const LevelSampling& sampling) {
    if (levels.size() != sampling.spatial_scales.size())
        throw py::value_error("spatial_scales must be one for each of the " + std::to_string(levels.size()) +
                              " levels, got " + std::to_string(sampling.spatial_scales.size()));
    std::vector<ArrayView> views;
    std::vector<RoiAlignSpec> specs;
    for (std::size_t i = 0; i < levels.size(); ++i) {
        views.push_back(levels[i].view);
        specs.push_back(roi_spec(views[i], rois, pooled));
        set_sampling(specs[i], sampling.spatial_scales[i], sampling.sampling_ratio, sampling.aligned);
    }
    set_one_layout(views, specs);
    std::vector<RoiLevel> result;
    for (std::size_t i = 0; i < levels.size(); ++i) result.push_back({specs[i], levels[i].data});
    validate_levels(result);
    return result;
}

const std::int64_t* checked_level_of(const py::object& object, const ArrayView& rois) {
    const DeviceArray level_of = device_array(object, "level_of");
    check_per_item(level_of.view, rois.shape[0], "i8", "roi");
    return static_cast<const std::int64_t*>(level_of.data);
}

std::string numbered(const char* name, std::size_t index) {
    return std::string(name) + "[" + std::to_string(index) + "]";
}

void pool_levels(const py::sequence& level_objects, const py::object& rois_object,
                 const py::object& level_of_object, const py::object& out_object,
                 const std::vector<double>& spatial_scales, int sampling_ratio, bool aligned, int device,
                 std::uintptr_t stream) {
    std::vector<DeviceArray> arrays;
    for (const py::handle level : level_objects)
        arrays.push_back(device_array(level, numbered("levels", arrays.size())));
    const DeviceArray rois = device_array(rois_object, "rois"), out = device_array(out_object, "out");
    const auto levels =
        checked_levels(arrays, rois.view, out.view, {spatial_scales, sampling_ratio, aligned});
    const std::int64_t* const level_of = checked_level_of(level_of_object, rois.view);
    void* const memory = writable(out);
    const ReleasedGil released;
    roi_align_levels_cuda(levels, rois.data, level_of, memory, device, stream_of(stream));
}

void spread_levels(const py::object& gradient_object, const py::object& rois_object,
                   const py::object& level_of_object, const py::sequence& out_objects,
                   const std::vector<double>& spatial_scales, int sampling_ratio, bool aligned, int device,
                   std::uintptr_t stream) {
    const DeviceArray gradient = device_array(gradient_object, "gradient");
    const DeviceArray rois = device_array(rois_object, "rois");
    std::vector<DeviceArray> arrays;
    for (const py::handle out : out_objects) {
        arrays.push_back(summed_array(out, numbered("out", arrays.size()), gradient.view.type));
        static_cast<void>(writable(arrays.back()));
    }
    const auto levels =
        checked_levels(arrays, rois.view, gradient.view, {spatial_scales, sampling_ratio, aligned});
    const std::int64_t* const level_of = checked_level_of(level_of_object, rois.view);
    const ReleasedGil released;
    roi_align_levels_backward_cuda(levels, gradient.data, rois.data, level_of, device, stream_of(stream));
}

}  // namespace

void register_detection_roi_cuda(py::module_& module) {
    const auto define = [&](const char* name, auto function, const char* first, const char* doc) {
        module.def(name, function, py::arg(first), py::arg("rois"), py::arg("out"), py::kw_only(),
                   py::arg("spatial_scale"), py::arg("sampling_ratio"), py::arg("aligned"), py::arg("device"),
                   py::arg("stream"), doc);
    };
    define("roi_align_cuda", &pool, "features", "roi_align on a device. Does not wait.");
    define("roi_align_backward_cuda", &spread, "gradient",
           "roi_align_backward on a device, to float32 (float64 for float64). Does not wait.");
    const auto define_levels = [&](const char* name, auto function, const char* first, const char* doc) {
        module.def(name, function, py::arg(first), py::arg("rois"), py::arg("level_of"), py::arg("out"),
                   py::kw_only(), py::arg("spatial_scales"), py::arg("sampling_ratio"), py::arg("aligned"),
                   py::arg("device"), py::arg("stream"), doc);
    };
    define_levels("roi_align_levels_cuda", &pool_levels, "levels",
                  "roi_align_cuda of each roi from its level, of all levels at once. Does not wait.");
    define_levels("roi_align_levels_backward_cuda", &spread_levels, "gradient",
                  "roi_align_backward_cuda to the levels of the rois, of all at once. Does not wait.");
}

}  // namespace hpcai500::bindings
