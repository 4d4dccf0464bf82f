// Checks of what Python hands to the climate reader.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/climate/climate_reader.h"

namespace hpcai500::bindings {

/// Whole numbers of any integer type; floats are refused.
using Indices = pybind11::array_t<std::int64_t, pybind11::array::c_style>;

/// The type that a name stands for: float32, float16 or bfloat16.
DType float_type(const std::string& name);

/// Files from objects with path, shape, dtype, offset, chunk, filters, addresses, sizes and masks.
std::vector<ClimateFile> climate_files(const pybind11::sequence& files);

/// Channels, rows and columns.
struct ImageExtents {
    std::int64_t channels, rows, columns;
};

/// The memory of an array of images (images, channels, rows, columns) after the checks.
struct ImageMemory {
    void* data;
    std::int64_t images;
};
ImageMemory image_memory(const pybind11::array& array, const std::string& name, DType dtype, bool writable,
                         const ImageExtents& extents);

/// Requests from parallel arrays; `places` default to 0, 1, ..., `rolls` to 0. Rolls may be negative or
/// larger than the image, as for numpy.roll.
std::vector<ImageRequest> image_requests(const std::optional<Indices>& files, const Indices& images,
                                         const std::optional<Indices>& places,
                                         const std::optional<Indices>& rolls, std::int64_t columns);

/// Without places, there must be as many requests as `out` has room for.
void check_count(const std::vector<ImageRequest>& requests, const std::optional<Indices>& places,
                 std::int64_t images);

}  // namespace hpcai500::bindings
