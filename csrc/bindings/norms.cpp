// Group norm on a device.
#include <cstdint>
#include <string>

#include "arrays.h"
#include "core/norms/group_norm.h"
#include "python.h"

namespace py = pybind11;
using namespace py::literals;

namespace hpcai500::bindings {
namespace {

NormItem item_of(const ArrayView& array) {
    if (array.type == "f4") return NormItem::float32;
    if (array.type == "f2") return NormItem::float16;
    if (array.type == "u2") return NormItem::bfloat16;
    throw py::value_error(
        array.name + " must be float32 (f4), float16 (f2) or bfloat16 as its bits (u2), got " + array.type);
}

void expect_runs(const ArrayView& array) {
    if (!has_channels_last(array))
        throw py::value_error(array.name + " must be contiguous with its channels last");
    if (reinterpret_cast<std::uintptr_t>(array.data) % 16 != 0)
        throw py::value_error(array.name + " must begin at a multiple of 16 bytes");
}

GroupNormShape shape_of(const ArrayView& images, int groups) {
    expect_axes(images, 4, "(images, channels, height, width)");
    constexpr std::int64_t most_channels = 1 << 20;
    const std::int64_t channels = images.shape[1];
    if (channels % 8 != 0 || channels > most_channels)
        throw py::value_error("images must have a multiple of 8 channels, got " + images.shape_text());
    if (groups < 1 || channels % groups != 0)
        throw py::value_error("groups must divide the channels, got " + std::to_string(groups));
    expect_runs(images);
    return {item_of(images), images.shape[0], images.shape[2] * images.shape[3], static_cast<int>(channels),
            groups};
}

// An array of the call, which lies on its device.
struct Call {
    int device;
    GroupNormShape shape{};

    ArrayView array(const py::object& object, const char* name) const {
        return read_array(object, {name}, on_device(device));
    }
    const float* per_channel(const py::object& object, const char* name) const {
        const ArrayView view = array(object, name);
        expect_per_item(view, shape.channels, "f4", "channel");
        return static_cast<const float*>(view.data);
    }
    float* pair(const py::object& object, const char* name, std::int64_t of_image) const {
        const ArrayView view = array(object, name);
        expect_flat(view, "f4", 2 * shape.images * of_image);
        return static_cast<float*>(view.writable());
    }
    void* like_images(const ArrayView& images, const py::object& object, const char* name,
                      bool written) const {
        const ArrayView view = array(object, name);
        if (view.shape != images.shape || view.type != images.type)
            throw py::value_error(std::string(name) + " must have the type and shape of images, " +
                                  images.shape_text() + ", got " + view.shape_text());
        expect_runs(view);
        return written ? view.writable() : view.data;
    }
    void* workspace(const py::object& object) const {
        const ArrayView view = array(object, "workspace");
        expect_flat(view, "u1", static_cast<std::int64_t>(group_norm_cuda_workspace(shape)));
        return view.writable();
    }
};

void normalise(const py::object& images_object, const py::object& weight, const py::object& bias,
               const py::object& out, const py::object& moments, const py::object& workspace, int groups,
               float epsilon, int device, std::uintptr_t stream) {
    Call call{device};
    const ArrayView images = call.array(images_object, "images");
    call.shape = shape_of(images, groups);
    const GroupNormMemory memory{images.data, call.per_channel(weight, "weight"),
                                 call.pair(moments, "moments", groups), call.workspace(workspace)};
    const float* const shift = call.per_channel(bias, "bias");
    void* const written = call.like_images(images, out, "out", true);
    const ReleasedGil released;
    group_norm_cuda(call.shape, epsilon, memory, shift, written, device, reinterpret_cast<void*>(stream));
}

void normalise_backward(const py::object& images_object, const py::object& gradient, const py::object& weight,
                        const py::object& moments, const py::object& out, const py::object& sums,
                        const py::object& workspace, int groups, int device, std::uintptr_t stream) {
    Call call{device};
    const ArrayView images = call.array(images_object, "images");
    call.shape = shape_of(images, groups);
    const GroupNormMemory memory{images.data, call.per_channel(weight, "weight"),
                                 call.pair(moments, "moments", groups), call.workspace(workspace)};
    const void* const slopes = call.like_images(images, gradient, "gradient", false);
    void* const written = call.like_images(images, out, "out", true);
    float* const into = call.pair(sums, "sums", call.shape.channels);
    const ReleasedGil released;
    group_norm_backward_cuda(call.shape, memory, slopes, written, into, device,
                             reinterpret_cast<void*>(stream));
}

}  // namespace

void register_norms(py::module_& module) {
    module.def(
        "group_norm_cuda_workspace",
        [](std::int64_t images, std::int64_t pixels, int channels, int groups, bool is_float32) {
            const NormItem item = is_float32 ? NormItem::float32 : NormItem::bfloat16;
            if (images < 0 || pixels < 0 || groups < 1 || channels < 8 || channels % 8 != 0 ||
                channels % groups != 0)
                throw py::value_error("channels must be a multiple of 8, and of groups");
            return group_norm_cuda_workspace({item, images, pixels, channels, groups});
        },
        "images"_a, "pixels"_a, "channels"_a, "groups"_a, "is_float32"_a,
        "Bytes of device memory that group_norm_cuda and group_norm_backward_cuda need.");
    module.def("group_norm_cuda", &normalise, "images"_a, "weight"_a, "bias"_a, "out"_a, "moments"_a,
               "workspace"_a, py::kw_only(), "groups"_a, "epsilon"_a, "device"_a, "stream"_a,
               "Group norm of images with channels last. Does not wait.");
    module.def("group_norm_backward_cuda", &normalise_backward, "images"_a, "gradient"_a, "weight"_a,
               "moments"_a, "out"_a, "sums"_a, "workspace"_a, py::kw_only(), "groups"_a, "device"_a,
               "stream"_a, "The gradients of group_norm_cuda. Does not wait.");
}

}  // namespace hpcai500::bindings
