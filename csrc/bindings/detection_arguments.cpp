#include "detection_arguments.h"

#include <algorithm>
#include <numeric>

namespace py = pybind11;

namespace hpcai500::bindings {
namespace {

// Whether walking the axes in this order, the last one fastest, visits memory without a gap.
bool is_packed(const ArrayView& view, const std::vector<std::size_t>& order) {
    std::int64_t expected = 1;
    for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
        // The stride of an axis of length 1 means nothing.
        if (view.shape[*axis] != 1 && view.strides[*axis] != expected) return false;
        expected *= view.shape[*axis];
    }
    return true;
}

std::int64_t elements(const ArrayView& view) {
    std::int64_t count = 1;
    for (const std::int64_t length : view.shape) count *= length;
    return count;
}

void expect_axes(const ArrayView& view, std::size_t axes, const char* shape) {
    if (view.shape.size() != axes)
        throw py::value_error(view.name + " must have shape " + shape + ", got " + shape_text(view.shape));
}

void expect_contiguous(const ArrayView& view) {
    std::vector<std::size_t> order(view.shape.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (elements(view) > 0 && !is_packed(view, order))
        throw py::value_error(view.name + " must be C-contiguous");
}

bool has_layout(const ArrayView& features, FeatureLayout layout) {
    const std::vector<std::size_t> first{0, 1, 2, 3}, last{0, 2, 3, 1};
    return elements(features) == 0 ||
           is_packed(features, layout == FeatureLayout::channels_first ? first : last);
}

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

}  // namespace

std::string shape_text(const std::vector<std::int64_t>& shape) {
    std::string text = "(";
    for (std::size_t axis = 0; axis < shape.size(); ++axis)
        text += (axis > 0 ? ", " : "") + std::to_string(shape[axis]);
    return text + (shape.size() == 1 ? ",)" : ")");
}

ArrayView view_of(const py::array& array, const std::string& name) {
    if ((array.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_) == 0)
        throw py::value_error(name + " must be aligned to its items");
    ArrayView view{name, array.dtype().kind() + std::to_string(array.itemsize()), {}, {}};
    if (array.dtype().byteorder() == '>') view.type.insert(0, ">");
    const py::ssize_t item = array.itemsize();
    for (py::ssize_t axis = 0; axis < array.ndim(); ++axis) {
        view.shape.push_back(array.shape(axis));
        view.strides.push_back(array.strides(axis) % item == 0 ? array.strides(axis) / item : no_stride);
    }
    return view;
}

bool check_boxes(const ArrayView& boxes) {
    const bool is_double = boxes.type == "f8";
    if (boxes.shape.size() != 2 || boxes.shape[1] != 4 || (!is_double && boxes.type != "f4"))
        throw py::value_error(boxes.name + " must have shape (n, 4) and type f4 or f8, got " +
                              shape_text(boxes.shape) + " and " + boxes.type);
    expect_contiguous(boxes);
    return is_double;
}

void check_per_item(const ArrayView& values, std::int64_t count, const std::string& type,
                    const std::string& item) {
    if (values.shape.size() != 1 || values.shape[0] != count || values.type != type)
        throw py::value_error(values.name + " must have shape (" + std::to_string(count) + ",) and type " +
                              type + ", one for each " + item + ", got " + shape_text(values.shape) +
                              " and " + values.type);
    expect_contiguous(values);
}

void check_segments(const std::vector<std::int64_t>& segments, std::int64_t boxes) {
    std::int64_t left = boxes;
    for (const std::int64_t count : segments) {
        if (count < 0 || count > left) {
            left = -1;
            break;
        }
        left -= count;
    }
    if (left != 0)
        throw py::value_error("segments must be lengths of 0 or more that add up to the " +
                              std::to_string(boxes) + " boxes");
}

void check_bytes(const ArrayView& memory, std::int64_t least) {
    if (memory.shape.size() != 1 || memory.shape[0] < least || memory.type != "u1")
        throw py::value_error(memory.name + " must have shape (n,) and type u1, n at least " +
                              std::to_string(least) + ", got " + shape_text(memory.shape) + " and " +
                              memory.type);
    expect_contiguous(memory);
}

RoiAlignSpec roi_spec(const ArrayView& features, const ArrayView& rois, const ArrayView& pooled) {
    RoiAlignSpec spec;
    expect_axes(features, 4, "(images, channels, height, width)");
    expect_axes(rois, 2, "(k, 5)");
    expect_axes(pooled, 4, "(k, channels, pooled_height, pooled_width)");
    spec.type = feature_type(features);
    if (has_layout(features, FeatureLayout::channels_first))
        spec.layout = FeatureLayout::channels_first;
    else if (has_layout(features, FeatureLayout::channels_last))
        spec.layout = FeatureLayout::channels_last;
    else
        throw py::value_error(features.name + " must be contiguous with channels first or last");
    const std::string roi_type = spec.type == FeatureType::float64 ? "f8" : "f4";
    if (rois.shape[1] != 5 || rois.type != roi_type)
        throw py::value_error("rois must have shape (k, 5) and type " + roi_type + ", got " +
                              shape_text(rois.shape) + " and " + rois.type);
    if (pooled.shape[0] != rois.shape[0] || pooled.shape[1] != features.shape[1] ||
        (pooled.type != features.type))
        throw py::value_error(pooled.name + " must have shape (" + std::to_string(rois.shape[0]) + ", " +
                              std::to_string(features.shape[1]) + ", pooled_height, pooled_width) and type " +
                              features.type + ", got " + shape_text(pooled.shape) + " and " + pooled.type);
    expect_contiguous(rois);
    expect_contiguous(pooled);
    spec.images = features.shape[0];
    spec.channels = features.shape[1];
    spec.height = features.shape[2];
    spec.width = features.shape[3];
    spec.rois = rois.shape[0];
    const auto bins = [](std::int64_t length) {
        return static_cast<int>(length > most_bins ? most_bins + 1 : length);
    };
    spec.pooled_height = bins(pooled.shape[2]);
    spec.pooled_width = bins(pooled.shape[3]);
    return spec;
}

void set_one_layout(const std::vector<ArrayView>& levels, std::vector<RoiAlignSpec>& specs) {
    const auto is_last = [](const RoiAlignSpec& spec) { return spec.layout == FeatureLayout::channels_last; };
    if (std::none_of(specs.begin(), specs.end(), is_last)) return;
    for (std::size_t i = 0; i < specs.size(); ++i) {
        if (!has_layout(levels[i], FeatureLayout::channels_last))
            throw py::value_error(levels[i].name +
                                  " must be contiguous with channels last, as other levels are");
        specs[i].layout = FeatureLayout::channels_last;
    }
}

void set_sampling(RoiAlignSpec& spec, double spatial_scale, int sampling_ratio, bool aligned) {
    spec.spatial_scale = spatial_scale;
    spec.sampling_ratio = sampling_ratio;
    spec.aligned = aligned;
    validate(spec);
}

}  // namespace hpcai500::bindings
