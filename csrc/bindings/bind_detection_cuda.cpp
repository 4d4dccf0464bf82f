#include <cstdint>
#include <optional>

#include "bindings.h"
#include "core/cuda_device.h"
#include "core/detection/nms.h"
#include "core/detection/roi_align.h"
#include "device_array.h"

namespace py = pybind11;

namespace hpcai500::bindings {
namespace {

void* stream_of(std::uintptr_t stream) {
    return reinterpret_cast<void*>(stream);
}

template <class Real>
void run_nms(const DeviceArray& boxes, const void* groups, const DeviceArray& keep,
             const DeviceArray& workspace, double iou_threshold, int device, std::uintptr_t stream) {
    const NmsCudaCall<Real> call{static_cast<const Real*>(boxes.data),
                                 static_cast<const std::int64_t*>(groups),
                                 boxes.view.shape[0],
                                 iou_threshold,
                                 static_cast<std::uint8_t*>(writable(keep)),
                                 writable(workspace),
                                 device,
                                 stream_of(stream)};
    const py::gil_scoped_release released;
    nms_cuda(call);
}

void nms_on_device(const py::object& boxes_object, const py::object& groups_object,
                   const py::object& keep_object, const py::object& workspace_object, double iou_threshold,
                   int device, std::uintptr_t stream) {
    const DeviceArray boxes = device_array(boxes_object, "boxes");
    const bool is_double = check_boxes(boxes.view);
    const std::int64_t count = boxes.view.shape[0];
    std::optional<DeviceArray> groups;
    if (!groups_object.is_none()) {
        groups = device_array(groups_object, "groups");
        check_per_box(groups->view, count, "i8");
    }
    const DeviceArray keep = device_array(keep_object, "keep");
    check_per_box(keep.view, count, "u1");
    const DeviceArray workspace = device_array(workspace_object, "workspace");
    check_bytes(workspace.view, static_cast<std::int64_t>(nms_cuda_workspace(count)));
    const auto run = is_double ? &run_nms<double> : &run_nms<float>;
    run(boxes, groups ? groups->data : nullptr, keep, workspace, iou_threshold, device, stream);
}

void pool(const py::object& features_object, const py::object& rois_object, const py::object& out_object,
          double spatial_scale, int sampling_ratio, bool aligned, int device, std::uintptr_t stream) {
    const DeviceArray features = device_array(features_object, "features");
    const DeviceArray rois = device_array(rois_object, "rois"), out = device_array(out_object, "out");
    RoiAlignSpec spec = roi_spec(features.view, rois.view, out.view);
    set_sampling(spec, spatial_scale, sampling_ratio, aligned);
    void* const memory = writable(out);
    const py::gil_scoped_release released;
    roi_align_cuda(spec, features.data, rois.data, memory, device, stream_of(stream));
}

void spread(const py::object& gradient_object, const py::object& rois_object, const py::object& out_object,
            double spatial_scale, int sampling_ratio, bool aligned, int device, std::uintptr_t stream) {
    const DeviceArray gradient = device_array(gradient_object, "gradient");
    const DeviceArray rois = device_array(rois_object, "rois");
    DeviceArray out = device_array(out_object, "out");
    const std::string summed = gradient.view.type == "f8" ? "f8" : "f4";
    if (out.view.type != summed)
        throw py::value_error("out must have type " + summed + ", in which the gradient is summed, got " +
                              out.view.type);
    out.view.type = gradient.view.type;
    RoiAlignSpec spec = roi_spec(out.view, rois.view, gradient.view);
    set_sampling(spec, spatial_scale, sampling_ratio, aligned);
    void* const memory = writable(out);
    const py::gil_scoped_release released;
    roi_align_backward_cuda(spec, gradient.data, rois.data, memory, device, stream_of(stream));
}

}  // namespace

void register_detection_cuda(py::module_& module) {
    module.def("cuda_device_count", &cuda_device_count,
               "CUDA devices that can be used; 0 without a driver, and in a build without CUDA.");
    module.def(
        "cuda_architectures", [] { return py::str(cuda_architectures()).attr("split")(); },
        "What the CUDA kernels were compiled for; empty in a build without CUDA.");
    module.def("nms_cuda_workspace", &nms_cuda_workspace, py::arg("count"),
               "Bytes of device memory that nms_cuda needs for `count` boxes.");
    module.def("nms_cuda", &nms_on_device, py::arg("boxes"), py::arg("groups"), py::arg("keep"),
               py::arg("workspace"), py::kw_only(), py::arg("iou_threshold"), py::arg("device"),
               py::arg("stream"),
               "nms for boxes in falling order of score: sets keep[i] to 1 or 0. Does not wait.");
    const auto define = [&](const char* name, auto function, const char* first, const char* doc) {
        module.def(name, function, py::arg(first), py::arg("rois"), py::arg("out"), py::kw_only(),
                   py::arg("spatial_scale"), py::arg("sampling_ratio"), py::arg("aligned"), py::arg("device"),
                   py::arg("stream"), doc);
    };
    define("roi_align_cuda", &pool, "features", "roi_align on a device. Does not wait.");
    define("roi_align_backward_cuda", &spread, "gradient",
           "roi_align_backward on a device, to float32 (float64 for float64). Does not wait.");
}

}  // namespace hpcai500::bindings
