// Arrays in device memory, described by the dictionary `__cuda_array_interface__` (versions 2 and 3).
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "detection_arguments.h"

namespace hpcai500::bindings {

/// Memory of a device that somebody else owns, with its shape and type checked, not its contents.
struct DeviceArray {
    ArrayView view;
    void* data;
    bool read_only;
};

/// Reads `object.__cuda_array_interface__`. Throws type_error where it has none, value_error where the
/// dictionary lacks something or contradicts itself.
DeviceArray device_array(const pybind11::handle& object, const std::string& name);

/// Its memory, for writing; value_error where it is read-only.
void* writable(const DeviceArray& array);

}  // namespace hpcai500::bindings
