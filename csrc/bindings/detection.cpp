// NMS and RoIAlign, on the processor and on a device.
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "arrays.h"
#include "core/cuda_device.h"
#include "core/detection/nms.h"
#include "core/detection/roi_align.h"
#include "python.h"

namespace py = pybind11;
using namespace py::literals;

namespace hpcai500::bindings {
namespace {

using Segments = std::vector<std::int64_t>;

void* stream_of(std::uintptr_t stream) {
    return reinterpret_cast<void*>(stream);
}

// What NMS reads. Boxes are (n, 4), float32 or float64; groups are None or one for each box.
struct Boxes {
    ArrayView boxes;
    std::optional<ArrayView> groups;

    Boxes(const py::object& boxes_object, const py::object& groups_object, const Place& place)
        : boxes(read_array(boxes_object, {"boxes"}, place)) {
        if (boxes.shape.size() != 2 || boxes.shape[1] != 4 || (!is_double() && boxes.type != "f4"))
            throw py::value_error(boxes.name + " must have shape (n, 4) and type f4 or f8, got " +
                                  boxes.shape_text() + " and " + boxes.type);
        expect_contiguous(boxes);
        if (groups_object.is_none()) return;
        if (place.kind == Place::processor && !py::isinstance<py::array>(groups_object))
            throw py::type_error("groups must be a NumPy array or None, got " + class_of(groups_object));
        groups = read_array(groups_object, {"groups"}, place);
        expect_per_item(*groups, count(), "i8", "box");
    }

    bool is_double() const { return boxes.type == "f8"; }
    std::int64_t count() const { return boxes.shape[0]; }
    template <class Real>
    const Real* coordinates() const {
        return static_cast<const Real*>(boxes.data);
    }
    const std::int64_t* group_numbers() const {
        return groups ? static_cast<const std::int64_t*>(groups->data) : nullptr;
    }
};

template <class Real>
std::vector<std::int64_t> kept_boxes(const Boxes& given, const void* scores, double iou_threshold,
                                     int threads) {
    const NmsInput<Real> input{given.coordinates<Real>(), static_cast<const Real*>(scores),
                               given.group_numbers(), given.count()};
    const ReleasedGil released;
    return nms(input, iou_threshold, threads);
}

py::array_t<std::int64_t> nms_indices(const py::object& boxes, const py::object& scores_object,
                                      const py::object& groups, double iou_threshold, int threads) {
    const Boxes given(boxes, groups, processor);
    const ArrayView scores = read_array(scores_object, {"scores"}, processor);
    expect_per_item(scores, given.count(), given.boxes.type, "box");
    const auto run = given.is_double() ? &kept_boxes<double> : &kept_boxes<float>;
    const auto kept = run(given, scores.data, iou_threshold, threads);
    py::array_t<std::int64_t> result(static_cast<py::ssize_t>(kept.size()));
    std::copy(kept.begin(), kept.end(), result.mutable_data());
    return result;
}

template <class Real>
void start_nms(const Boxes& given, const Segments& segments, double iou_threshold, void* keep,
               void* workspace, int device, void* stream) {
    const NmsCudaCall<Real> call{given.coordinates<Real>(),
                                 given.group_numbers(),
                                 segments,
                                 iou_threshold,
                                 static_cast<std::uint8_t*>(keep),
                                 workspace,
                                 device,
                                 stream};
    const ReleasedGil released;
    nms_cuda(call);
}

void start_nms(const Boxes& given, const Segments& segments, const py::object& keep_object,
               const py::object& workspace_object, double iou_threshold, int device, std::uintptr_t stream) {
    const ArrayView keep = read_array(keep_object, {"keep"}, any_device);
    expect_per_item(keep, given.count(), "u1", "box");
    const ArrayView workspace = read_array(workspace_object, {"workspace"}, any_device);
    expect_flat(workspace, "u1", static_cast<std::int64_t>(nms_cuda_workspace(segments)));
    const auto start = given.is_double() ? &start_nms<double> : &start_nms<float>;
    start(given, segments, iou_threshold, keep.writable(), workspace.writable(), device, stream_of(stream));
}

void nms_on_device(const py::object& boxes, const py::object& groups, const py::object& keep,
                   const py::object& workspace, double iou_threshold, int device, std::uintptr_t stream) {
    const Boxes given(boxes, groups, any_device);
    start_nms(given, {given.count()}, keep, workspace, iou_threshold, device, stream);
}

// Segments must be 0 or more boxes each, and all boxes together.
void expect_all_boxes(const Segments& segments, std::int64_t boxes) {
    std::int64_t left = boxes;
    const bool fit = std::all_of(segments.begin(), segments.end(), [&](std::int64_t count) {
        if (count < 0 || count > left) return false;
        left -= count;
        return true;
    });
    if (!fit || left != 0)
        throw py::value_error("segments must be lengths of 0 or more that add up to the " +
                              std::to_string(boxes) + " boxes");
}

void nms_segments_on_device(const py::object& boxes, const Segments& segments, const py::object& keep,
                            const py::object& workspace, double iou_threshold, int device,
                            std::uintptr_t stream) {
    const Boxes given(boxes, py::none(), any_device);
    expect_all_boxes(segments, given.count());
    start_nms(given, segments, keep, workspace, iou_threshold, device, stream);
}

struct Sampling {
    int sampling_ratio;
    bool aligned;
};

FeatureType feature_type(const ArrayView& features) {
    if (features.type == "f4") return FeatureType::float32;
    if (features.type == "f2") return FeatureType::float16;
    if (features.type == "u2") return FeatureType::bfloat16;
    if (features.type == "f8") return FeatureType::float64;
    throw py::value_error(
        features.name +
        " must be float32 (f4), float16 (f2), bfloat16 as its bits (u2) or float64 (f8), got " +
        features.type);
}

// `features` is (images, channels, height, width), contiguous with its channels first or last; `rois` (k, 5)
// and `pooled` (k, channels, pooled_height, pooled_width) are C-contiguous.
RoiAlignSpec roi_spec(const ArrayView& features, const ArrayView& rois, const ArrayView& pooled,
                      double spatial_scale, const Sampling& sampling) {
    RoiAlignSpec spec;
    expect_axes(features, 4, "(images, channels, height, width)");
    expect_axes(rois, 2, "(k, 5)");
    expect_axes(pooled, 4, "(k, channels, pooled_height, pooled_width)");
    spec.type = feature_type(features);
    spec.layout =
        expect_channels_last(features) ? FeatureLayout::channels_last : FeatureLayout::channels_first;
    const std::string roi_type = spec.type == FeatureType::float64 ? "f8" : "f4";
    if (rois.shape[1] != 5 || rois.type != roi_type)
        throw py::value_error("rois must have shape (k, 5) and type " + roi_type + ", got " +
                              rois.shape_text() + " and " + rois.type);
    if (pooled.shape[0] != rois.shape[0] || pooled.shape[1] != features.shape[1] ||
        (pooled.type != features.type))
        throw py::value_error(pooled.name + " must have shape (" + std::to_string(rois.shape[0]) + ", " +
                              std::to_string(features.shape[1]) + ", pooled_height, pooled_width) and type " +
                              features.type + ", got " + pooled.shape_text() + " and " + pooled.type);
    expect_contiguous(rois);
    expect_contiguous(pooled);
    spec.images = features.shape[0];
    spec.channels = features.shape[1];
    spec.height = features.shape[2];
    spec.width = features.shape[3];
    spec.rois = rois.shape[0];
    const auto bins = [](std::int64_t length) {
        return static_cast<int>(std::min<std::int64_t>(length, most_bins + 1));
    };
    spec.pooled_height = bins(pooled.shape[2]);
    spec.pooled_width = bins(pooled.shape[3]);
    spec.spatial_scale = spatial_scale;
    spec.sampling_ratio = sampling.sampling_ratio;
    spec.aligned = sampling.aligned;
    validate(spec);
    return spec;
}

// On a device gradients are summed in float32, or in float64 where `type` is f8. The view then says `type`,
// so that roi_spec() compares it with the gradient's.
ArrayView summed_array(const py::handle& object, const ArrayName& name, const std::string& type) {
    ArrayView array = read_array(object, name, any_device);
    const std::string summed = type == "f8" ? "f8" : "f4";
    if (array.type != summed)
        throw py::value_error(array.name + " must have type " + summed +
                              ", in which the gradient is summed, got " + array.type);
    array.type = type;
    return array;
}

void pool(const py::object& features_object, const py::object& rois_object, const py::object& out_object,
          double spatial_scale, int sampling_ratio, bool aligned, int threads) {
    const ArrayView features = read_array(features_object, {"features"}, processor);
    const ArrayView rois = read_array(rois_object, {"rois"}, processor);
    const ArrayView out = read_array(out_object, {"out"}, processor);
    const RoiAlignSpec spec = roi_spec(features, rois, out, spatial_scale, {sampling_ratio, aligned});
    void* const memory = out.writable();
    const ReleasedGil released;
    roi_align(spec, features.data, rois.data, memory, threads);
}

void pool_on_device(const py::object& features_object, const py::object& rois_object,
                    const py::object& out_object, double spatial_scale, int sampling_ratio, bool aligned,
                    int device, std::uintptr_t stream) {
    const ArrayView features = read_array(features_object, {"features"}, any_device);
    const ArrayView rois = read_array(rois_object, {"rois"}, any_device);
    const ArrayView out = read_array(out_object, {"out"}, any_device);
    const RoiAlignSpec spec = roi_spec(features, rois, out, spatial_scale, {sampling_ratio, aligned});
    void* const memory = out.writable();
    const ReleasedGil released;
    roi_align_cuda(spec, features.data, rois.data, memory, device, stream_of(stream));
}

void spread(const py::object& gradient_object, const py::object& rois_object, const py::object& out_object,
            double spatial_scale, int sampling_ratio, bool aligned, int threads) {
    const ArrayView gradient = read_array(gradient_object, {"gradient"}, processor);
    const ArrayView rois = read_array(rois_object, {"rois"}, processor);
    const ArrayView out = read_array(out_object, {"out"}, processor);
    const RoiAlignSpec spec = roi_spec(out, rois, gradient, spatial_scale, {sampling_ratio, aligned});
    void* const memory = out.writable();
    const ReleasedGil released;
    roi_align_backward(spec, gradient.data, rois.data, memory, threads);
}

void spread_on_device(const py::object& gradient_object, const py::object& rois_object,
                      const py::object& out_object, double spatial_scale, int sampling_ratio, bool aligned,
                      int device, std::uintptr_t stream) {
    const ArrayView gradient = read_array(gradient_object, {"gradient"}, any_device);
    const ArrayView rois = read_array(rois_object, {"rois"}, any_device);
    const ArrayView out = summed_array(out_object, {"out"}, gradient.type);
    const RoiAlignSpec spec = roi_spec(out, rois, gradient, spatial_scale, {sampling_ratio, aligned});
    void* const memory = out.writable();
    const ReleasedGil released;
    roi_align_backward_cuda(spec, gradient.data, rois.data, memory, device, stream_of(stream));
}

// All levels have one layout: those that are contiguous with channels first and last (a single channel or
// pixel) that of the others.
void set_one_layout(const std::vector<ArrayView>& levels, std::vector<RoiLevel>& given) {
    const auto is_last = [](const RoiLevel& level) {
        return level.spec.layout == FeatureLayout::channels_last;
    };
    if (std::none_of(given.begin(), given.end(), is_last)) return;
    for (std::size_t i = 0; i < given.size(); ++i) {
        if (!has_channels_last(levels[i]))
            throw py::value_error(levels[i].name +
                                  " must be contiguous with channels last, as other levels are");
        given[i].spec.layout = FeatureLayout::channels_last;
    }
}

std::vector<RoiLevel> roi_levels(const std::vector<ArrayView>& levels, const ArrayView& rois,
                                 const ArrayView& pooled, const std::vector<double>& spatial_scales,
                                 const Sampling& sampling) {
    if (levels.size() != spatial_scales.size())
        throw py::value_error("spatial_scales must be one for each of the " + std::to_string(levels.size()) +
                              " levels, got " + std::to_string(spatial_scales.size()));
    std::vector<RoiLevel> result;
    for (std::size_t i = 0; i < levels.size(); ++i)
        result.push_back({roi_spec(levels[i], rois, pooled, spatial_scales[i], sampling), levels[i].data});
    set_one_layout(levels, result);
    validate_levels(result);
    return result;
}

const std::int64_t* level_numbers(const py::object& object, const ArrayView& rois) {
    const ArrayView level_of = read_array(object, {"level_of"}, any_device);
    expect_per_item(level_of, rois.shape[0], "i8", "roi");
    return static_cast<const std::int64_t*>(level_of.data);
}

void pool_levels(const py::sequence& level_objects, const py::object& rois_object,
                 const py::object& level_of_object, const py::object& out_object,
                 const std::vector<double>& spatial_scales, int sampling_ratio, bool aligned, int device,
                 std::uintptr_t stream) {
    std::vector<ArrayView> arrays;
    for (const py::handle level : level_objects)
        arrays.push_back(read_array(level, {"levels", arrays.size()}, any_device));
    const ArrayView rois = read_array(rois_object, {"rois"}, any_device);
    const ArrayView out = read_array(out_object, {"out"}, any_device);
    const auto levels = roi_levels(arrays, rois, out, spatial_scales, {sampling_ratio, aligned});
    const std::int64_t* const level_of = level_numbers(level_of_object, rois);
    void* const memory = out.writable();
    const ReleasedGil released;
    roi_align_levels_cuda(levels, rois.data, level_of, memory, device, stream_of(stream));
}

void spread_levels(const py::object& gradient_object, const py::object& rois_object,
                   const py::object& level_of_object, const py::sequence& out_objects,
                   const std::vector<double>& spatial_scales, int sampling_ratio, bool aligned, int device,
                   std::uintptr_t stream) {
    const ArrayView gradient = read_array(gradient_object, {"gradient"}, any_device);
    const ArrayView rois = read_array(rois_object, {"rois"}, any_device);
    std::vector<ArrayView> arrays;
    for (const py::handle out : out_objects) {
        arrays.push_back(summed_array(out, {"out", arrays.size()}, gradient.type));
        static_cast<void>(arrays.back().writable());
    }
    const auto levels = roi_levels(arrays, rois, gradient, spatial_scales, {sampling_ratio, aligned});
    const std::int64_t* const level_of = level_numbers(level_of_object, rois);
    const ReleasedGil released;
    roi_align_levels_backward_cuda(levels, gradient.data, rois.data, level_of, device, stream_of(stream));
}

void register_nms(py::module_& module) {
    module.def("nms", &nms_indices, "boxes"_a, "scores"_a, "groups"_a, py::kw_only(), "iou_threshold"_a,
               "threads"_a, "Indices of the boxes that stay, in falling order of score.");
    module.def(
        "nms_cuda_workspace", [](std::int64_t count) { return nms_cuda_workspace(Segments{count}); },
        "count"_a, "Bytes of device memory that nms_cuda needs for `count` boxes.");
    module.def(
        "nms_segments_cuda_workspace", [](const Segments& segments) { return nms_cuda_workspace(segments); },
        "segments"_a, "Bytes of device memory that nms_segments_cuda needs.");
    module.def("nms_cuda", &nms_on_device, "boxes"_a, "groups"_a, "keep"_a, "workspace"_a, py::kw_only(),
               "iou_threshold"_a, "device"_a, "stream"_a,
               "nms for boxes in falling order of score: sets keep[i] to 1 or 0. Does not wait.");
    module.def("nms_segments_cuda", &nms_segments_on_device, "boxes"_a, "segments"_a, "keep"_a, "workspace"_a,
               py::kw_only(), "iou_threshold"_a, "device"_a, "stream"_a,
               "nms_cuda of many segments at once, one after the other in `boxes`. Does not wait.");
}

void register_roi_align(py::module_& module) {
    const auto define = [&](const char* name, auto function, const char* first, const char* doc) {
        module.def(name, function, py::arg(first), "rois"_a, "out"_a, py::kw_only(), "spatial_scale"_a,
                   "sampling_ratio"_a, "aligned"_a, "threads"_a, doc);
    };
    define("roi_align", &pool, "features", "Pools each roi of the features to `out`.");
    define("roi_align_backward", &spread, "gradient", "Writes the gradient by the features to `out`.");
    const auto define_on_device = [&](const char* name, auto function, const char* first, const char* doc) {
        module.def(name, function, py::arg(first), "rois"_a, "out"_a, py::kw_only(), "spatial_scale"_a,
                   "sampling_ratio"_a, "aligned"_a, "device"_a, "stream"_a, doc);
    };
    define_on_device("roi_align_cuda", &pool_on_device, "features", "roi_align on a device. Does not wait.");
    define_on_device("roi_align_backward_cuda", &spread_on_device, "gradient",
                     "roi_align_backward on a device, to float32 (float64 for float64). Does not wait.");
    const auto define_levels = [&](const char* name, auto function, const char* first, const char* doc) {
        module.def(name, function, py::arg(first), "rois"_a, "level_of"_a, "out"_a, py::kw_only(),
                   "spatial_scales"_a, "sampling_ratio"_a, "aligned"_a, "device"_a, "stream"_a, doc);
    };
    define_levels("roi_align_levels_cuda", &pool_levels, "levels",
                  "roi_align_cuda of each roi from its level, of all levels at once. Does not wait.");
    define_levels("roi_align_levels_backward_cuda", &spread_levels, "gradient",
                  "roi_align_backward_cuda to the levels of the rois, of all at once. Does not wait.");
}

}  // namespace

void register_detection(py::module_& module) {
    module.def("cuda_device_count", &cuda_device_count,
               "CUDA devices that can be used; 0 without a driver, and in a build without CUDA.");
    module.def(
        "cuda_architectures", [] { return py::str(cuda_architectures()).attr("split")(); },
        "What the CUDA kernels were compiled for; empty in a build without CUDA.");
    register_nms(module);
    register_roi_align(module);
}

}  // namespace hpcai500::bindings
