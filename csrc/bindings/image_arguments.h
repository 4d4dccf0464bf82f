// The checks that processor and device arrays of images share: an array is its shape, type and strides.
#pragma once

#include <pybind11/pybind11.h>

#include "core/images/convert_images.h"
#include "detection_arguments.h"

namespace hpcai500::bindings {

/// Both arrays must be (images, channels, height, width), contiguous with their channels first or last (by
/// their strides); `mean` and `std` are None or have a number for each channel. Throws value_error, which
/// names what is expected and what came.
ImageConversion image_conversion(const ArrayView& images, const ArrayView& out, const pybind11::object& mean,
                                 const pybind11::object& std);

/// Memory that is written must not be read: value_error where both have a byte in common.
void check_apart(const ImageConversion& conversion, const void* images, const void* out);

}  // namespace hpcai500::bindings
