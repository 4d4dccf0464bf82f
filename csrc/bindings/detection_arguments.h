// The checks that processor and device arrays of NMS and RoIAlign share: an array is its shape, type and
// strides.
#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/detection/roi_align.h"

namespace hpcai500::bindings {

/// Of a step that is no whole number of elements: equal to no step of a packed array.
inline constexpr std::int64_t no_stride = -1;

/// An array without its memory. Strides are in elements.
struct ArrayView {
    std::string name, type;  ///< the type as in NumPy's typestr, without byte order: f4, f8, f2, u2, i8, u1
    std::vector<std::int64_t> shape, strides;
};

ArrayView view_of(const pybind11::array& array, const std::string& name);

/// "(2, 3)"
std::string shape_text(const std::vector<std::int64_t>& shape);

/// Boxes must be (n, 4), float32 or float64, C-contiguous. Returns whether they are float64.
bool check_boxes(const ArrayView& boxes);

/// Scores, groups and the like, one for each `item`: (count,) of `type`, C-contiguous.
void check_per_item(const ArrayView& values, std::int64_t count, const std::string& type,
                    const std::string& item = "box");

/// Segments of boxes must be 0 or more boxes each, and all boxes together.
void check_segments(const std::vector<std::int64_t>& segments, std::int64_t boxes);

/// Memory to work in must be bytes, C-contiguous, at least `least` of them.
void check_bytes(const ArrayView& memory, std::int64_t least);

/// Reads type, layout and sizes. `features` is (images, channels, height, width), contiguous with its
/// channels first or last; `rois` (k, 5) and `pooled` (k, channels, pooled_height, pooled_width) are
/// C-contiguous. Throws value_error, which names what is expected and what came.
RoiAlignSpec roi_spec(const ArrayView& features, const ArrayView& rois, const ArrayView& pooled);

/// Gives the levels of a pyramid one layout: those that are contiguous with channels first and last (a single
/// channel or pixel) that of the others. Throws value_error, which names the level that has another.
void set_one_layout(const std::vector<ArrayView>& levels, std::vector<RoiAlignSpec>& specs);

/// The rest of the spec, and the check of all of it.
void set_sampling(RoiAlignSpec& spec, double spatial_scale, int sampling_ratio, bool aligned);

}  // namespace hpcai500::bindings
