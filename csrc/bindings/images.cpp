// Conversion of images, on the processor and on a device.
#include <pybind11/stl.h>

#include <cstdint>
#include <vector>

#include "arrays.h"
#include "core/images/convert_images.h"
#include "python.h"

namespace py = pybind11;
using namespace py::literals;

namespace hpcai500::bindings {
namespace {

ImageItem item_of(const ArrayView& array, bool written) {
    if (array.type == "f4") return ImageItem::float32;
    if (array.type == "f2") return ImageItem::float16;
    if (array.type == "u2") return ImageItem::bfloat16;
    if (array.type == "u1" && !written) return ImageItem::uint8;
    throw py::value_error(
        array.name + " must be float32 (f4), float16 (f2)" +
        (written ? " or bfloat16 as its bits (u2)" : ", bfloat16 as its bits (u2) or uint8 (u1)") + ", got " +
        array.type);
}

ImageLayout layout_of(const ArrayView& array) {
    return expect_channels_last(array) ? ImageLayout::channels_last : ImageLayout::channels_first;
}

std::vector<double> numbers_of(const py::object& values) {
    return values.is_none() ? std::vector<double>{} : py::cast<std::vector<double>>(values);
}

// `mean` and `std` are None or have a number for each channel.
ImageConversion conversion_of(const ArrayView& images, const ArrayView& out, const py::object& mean,
                              const py::object& std) {
    expect_axes(images, 4, "(images, channels, height, width)");
    if (out.shape != images.shape)
        throw py::value_error(out.name + " must have shape " + images.shape_text() + ", got " +
                              out.shape_text());
    ImageConversion conversion;
    conversion.from = item_of(images, false);
    conversion.to = item_of(out, true);
    conversion.from_layout = layout_of(images);
    conversion.to_layout = layout_of(out);
    conversion.images = images.shape[0];
    conversion.channels = images.shape[1];
    conversion.pixels = images.shape[2] * images.shape[3];
    set_factors(conversion, numbers_of(mean), numbers_of(std));
    return conversion;
}

void expect_apart(const ImageConversion& conversion, const ArrayView& images, const ArrayView& out) {
    const auto end = [](const ArrayView& array, ImageItem item) {
        return reinterpret_cast<std::uintptr_t>(array.data) +
               static_cast<std::uintptr_t>(array.count() * item_bytes(item));
    };
    const auto from = reinterpret_cast<std::uintptr_t>(images.data),
               to = reinterpret_cast<std::uintptr_t>(out.data);
    if (images.count() > 0 && from < end(out, conversion.to) && to < end(images, conversion.from))
        throw py::value_error("images and out overlap");
}

void convert(const py::object& images_object, const py::object& out_object, const py::object& mean,
             const py::object& std, int threads) {
    const ArrayView images = read_array(images_object, {"images"}, processor);
    const ArrayView out = read_array(out_object, {"out"}, processor);
    const ImageConversion conversion = conversion_of(images, out, mean, std);
    void* const memory = out.writable();
    expect_apart(conversion, images, out);
    const ReleasedGil released;
    convert_images(conversion, images.data, memory, threads);
}

void convert_on_device(const py::object& images_object, const py::object& out_object, const py::object& mean,
                       const py::object& std, int device, std::uintptr_t stream) {
    const ArrayView images = read_array(images_object, {"images"}, on_device(device));
    const ArrayView out = read_array(out_object, {"out"}, on_device(device));
    const ImageConversion conversion = conversion_of(images, out, mean, std);
    void* const memory = out.writable();
    expect_apart(conversion, images, out);
    const ReleasedGil released;
    convert_images_cuda(conversion, images.data, memory, device, reinterpret_cast<void*>(stream));
}

}  // namespace

void register_images(py::module_& module) {
    module.def("convert_images", &convert, "images"_a, "out"_a, py::kw_only(), "mean"_a = py::none(),
               "std"_a = py::none(), "threads"_a,
               "Writes the images, normalised by channel, in the type and layout of `out`.");
    module.def("convert_images_cuda", &convert_on_device, "images"_a, "out"_a, py::kw_only(),
               "mean"_a = py::none(), "std"_a = py::none(), "device"_a, "stream"_a,
               "convert_images on a device. Does not wait.");
}

}  // namespace hpcai500::bindings
