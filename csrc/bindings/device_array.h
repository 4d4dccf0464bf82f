// Arrays in device memory: shown by DLPack's table of functions where their type has one (torch's has), else
// described by the dictionary `__cuda_array_interface__` (versions 2 and 3), which torch takes microseconds
// to make.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "detection_arguments.h"
#include "dlpack_exchange.h"

namespace hpcai500::bindings {

/// Memory of a device that somebody else owns, with its shape and type checked, not its contents.
struct DeviceArray {
    ArrayView view;
    void* data;
    bool read_only;
};

inline constexpr int any_device = -1;

/// What `object` says of itself. With a `device`, memory that DLPack shows must be on it; the dictionary does
/// not tell where its memory is. Only the dictionary tells whether memory may be written. Throws type_error
/// for what is not in CUDA memory, value_error where what is said lacks something, contradicts itself, or is
/// of another device.
DeviceArray device_array(const pybind11::handle& object, const std::string& name, int device = any_device);

/// Throws what device_array throws unless the memory is on a CUDA device, and on `device` where one is given.
void check_on_device(const DlpackTensor& shown, const ArrayName& name, int device);

/// Its memory, for writing; value_error where it is read-only.
void* writable(const DeviceArray& array);

}  // namespace hpcai500::bindings
