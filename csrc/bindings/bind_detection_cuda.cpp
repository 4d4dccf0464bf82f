#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bindings.h"
#include "core/cuda_device.h"
#include "core/detection/nms.h"
#include "device_array.h"

namespace py = pybind11;

namespace hpcai500::bindings {
namespace {

void* stream_of(std::uintptr_t stream) {
    return reinterpret_cast<void*>(stream);
}

using Segments = std::vector<std::int64_t>;

/// Boxes on a device, and which of them suppress each other.
struct BoxesOnDevice {
    DeviceArray boxes;
    const void* groups;
    Segments segments;
    double iou_threshold;
};

template <class Real>
void run_nms(const BoxesOnDevice& given, void* keep, void* workspace, int device, std::uintptr_t stream) {
    const NmsCudaCall<Real> call{static_cast<const Real*>(given.boxes.data),
                                 static_cast<const std::int64_t*>(given.groups),
                                 given.segments,
                                 given.iou_threshold,
                                 static_cast<std::uint8_t*>(keep),
                                 workspace,
                                 device,
                                 stream_of(stream)};
    const ReleasedGil released;
    nms_cuda(call);
}

void run_nms(const BoxesOnDevice& given, const py::object& keep_object, const py::object& workspace_object,
             int device, std::uintptr_t stream) {
    const DeviceArray keep = device_array(keep_object, "keep");
    check_per_item(keep.view, given.boxes.view.shape[0], "u1");
    const DeviceArray workspace = device_array(workspace_object, "workspace");
    check_bytes(workspace.view, static_cast<std::int64_t>(nms_cuda_workspace(given.segments)));
    const auto run = check_boxes(given.boxes.view) ? &run_nms<double> : &run_nms<float>;
    run(given, writable(keep), writable(workspace), device, stream);
}

void nms_on_device(const py::object& boxes_object, const py::object& groups_object, const py::object& keep,
                   const py::object& workspace, double iou_threshold, int device, std::uintptr_t stream) {
    const DeviceArray boxes = device_array(boxes_object, "boxes");
    check_boxes(boxes.view);
    const std::int64_t count = boxes.view.shape[0];
    const void* groups = nullptr;
    if (!groups_object.is_none()) {
        const DeviceArray array = device_array(groups_object, "groups");
        check_per_item(array.view, count, "i8");
        groups = array.data;
    }
    run_nms({boxes, groups, {count}, iou_threshold}, keep, workspace, device, stream);
}

void nms_segments_on_device(const py::object& boxes_object, const Segments& segments, const py::object& keep,
                            const py::object& workspace, double iou_threshold, int device,
                            std::uintptr_t stream) {
    const DeviceArray boxes = device_array(boxes_object, "boxes");
    check_boxes(boxes.view);
    check_segments(segments, boxes.view.shape[0]);
    run_nms({boxes, nullptr, segments, iou_threshold}, keep, workspace, device, stream);
}

}  // namespace

void register_detection_cuda(py::module_& module) {
    module.def("cuda_device_count", &cuda_device_count,
               "CUDA devices that can be used; 0 without a driver, and in a build without CUDA.");
    module.def(
        "cuda_architectures", [] { return py::str(cuda_architectures()).attr("split")(); },
        "What the CUDA kernels were compiled for; empty in a build without CUDA.");
    module.def(
        "nms_cuda_workspace", [](std::int64_t count) { return nms_cuda_workspace(Segments{count}); },
        py::arg("count"), "Bytes of device memory that nms_cuda needs for `count` boxes.");
    module.def(
        "nms_segments_cuda_workspace", [](const Segments& segments) { return nms_cuda_workspace(segments); },
        py::arg("segments"), "Bytes of device memory that nms_segments_cuda needs.");
    module.def("nms_cuda", &nms_on_device, py::arg("boxes"), py::arg("groups"), py::arg("keep"),
               py::arg("workspace"), py::kw_only(), py::arg("iou_threshold"), py::arg("device"),
               py::arg("stream"),
               "nms for boxes in falling order of score: sets keep[i] to 1 or 0. Does not wait.");
    module.def("nms_segments_cuda", &nms_segments_on_device, py::arg("boxes"), py::arg("segments"),
               py::arg("keep"), py::arg("workspace"), py::kw_only(), py::arg("iou_threshold"),
               py::arg("device"), py::arg("stream"),
               "nms_cuda of many segments at once, one after the other in `boxes`. Does not wait.");
}

}  // namespace hpcai500::bindings
