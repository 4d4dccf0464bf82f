#include "image_arguments.h"

#include <pybind11/stl.h>

#include <cstddef>

namespace py = pybind11;

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

// Whether walking the axes in this order, the last one fastest, visits memory without a gap.
bool is_packed(const ArrayView& array, const std::size_t (&order)[4]) {
    std::int64_t expected = 1;
    for (std::size_t at = 4; at-- > 0;) {
        const std::size_t axis = order[at];
        // The stride of an axis of length 1 means nothing.
        if (array.shape[axis] != 1 && array.strides[axis] != expected) return false;
        expected *= array.shape[axis];
    }
    return true;
}

ImageLayout layout_of(const ArrayView& array) {
    bool empty = false;
    for (const std::int64_t length : array.shape) empty |= length == 0;
    if (empty || is_packed(array, {0, 1, 2, 3})) return ImageLayout::channels_first;
    if (is_packed(array, {0, 2, 3, 1})) return ImageLayout::channels_last;
    throw py::value_error(array.name + " must be contiguous with channels first or last");
}

std::vector<double> numbers_of(const py::object& values) {
    return values.is_none() ? std::vector<double>{} : py::cast<std::vector<double>>(values);
}

}  // namespace

ImageConversion image_conversion(const ArrayView& images, const ArrayView& out, const py::object& mean,
                                 const py::object& std) {
    if (images.shape.size() != 4)
        throw py::value_error(images.name + " must have shape (images, channels, height, width), got " +
                              shape_text(images.shape));
    if (out.shape != images.shape)
        throw py::value_error(out.name + " must have shape " + shape_text(images.shape) + ", got " +
                              shape_text(out.shape));
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

void check_apart(const ImageConversion& conversion, const void* images, const void* out) {
    const std::int64_t count = conversion.images * conversion.channels * conversion.pixels;
    const auto from = reinterpret_cast<std::uintptr_t>(images), to = reinterpret_cast<std::uintptr_t>(out);
    const auto from_end = from + static_cast<std::uintptr_t>(count * item_bytes(conversion.from));
    const auto to_end = to + static_cast<std::uintptr_t>(count * item_bytes(conversion.to));
    if (count > 0 && from < to_end && to < from_end) throw py::value_error("images and out overlap");
}

}  // namespace hpcai500::bindings
