#include "dlpack_array.h"

#include "array_shapes.h"

namespace py = pybind11;

namespace hpcai500::bindings {
namespace {

// As many as NumPy has.
constexpr std::int32_t most_axes = 64;

[[noreturn]] void refuse(const std::string& name, const std::string& expected, const std::string& received) {
    throw py::value_error(name + ": DLPack must show " + expected + ", got " + received);
}

char letter_of(const DlpackType& type) {
    switch (type.code) {
        case dlpack_code::whole:
            return 'i';
        case dlpack_code::natural:
            return 'u';
        case dlpack_code::real:
            return 'f';
        case dlpack_code::complex:
            return 'c';
        case dlpack_code::boolean:
            return 'b';
        case dlpack_code::bfloat:
            return type.bits == 16 ? 'u' : '?';
        default:
            return '?';
    }
}

// Returns the bytes of an item.
std::int64_t read_type(const DlpackType& type, ArrayView& view) {
    const char letter = letter_of(type);
    const bool whole_bytes = type.bits == 8 || type.bits == 16 || type.bits == 32 || type.bits == 64;
    if (letter == '?' || !whole_bytes || type.lanes != 1)
        refuse(view.name, "items of 1, 2, 4 or 8 bytes",
               "type code " + std::to_string(type.code) + ", " + std::to_string(type.bits) + " bits, " +
                   std::to_string(type.lanes) + " lanes");
    view.type = letter + std::to_string(type.bits / 8);
    return type.bits / 8;
}

void read_axes(const DlpackTensor& shown, ArrayView& view) {
    if (shown.axes < 0 || shown.axes > most_axes)
        refuse(view.name, "at most " + std::to_string(most_axes) + " axes", std::to_string(shown.axes));
    if (shown.axes > 0 && shown.shape == nullptr) refuse(view.name, "a shape", "none");
    view.shape.assign(shown.shape, shown.shape + shown.axes);
    if (!is_countable(view.shape)) refuse(view.name, "at most 2**48 elements", shape_text(view.shape));
    if (shown.strides == nullptr)
        view.strides = contiguous_strides(view.shape);
    else
        view.strides.assign(shown.strides, shown.strides + shown.axes);
}

std::uintptr_t address_of(const DlpackTensor& shown) {
    return reinterpret_cast<std::uintptr_t>(shown.data) + static_cast<std::uintptr_t>(shown.byte_offset);
}

// The last axis that has this stride and more than one element; -1 where none has.
std::int32_t axis_of_stride(const DlpackTensor& shown, std::int64_t stride) {
    std::int32_t axis = shown.axes - 1;
    while (axis >= 0 && (shown.shape[axis] == 1 || shown.strides[axis] != stride)) --axis;
    return axis;
}

}  // namespace

std::string place_text(const DlpackTensor& shown) {
    if (shown.device_type == dlpack_device::processor || shown.device_type == dlpack_device::cuda_host)
        return "in the processor's memory";
    if (shown.device_type == dlpack_device::cuda || shown.device_type == dlpack_device::cuda_managed)
        return "on CUDA device " + std::to_string(shown.device_id);
    return "on a device of DLPack's type " + std::to_string(shown.device_type);
}

void* read_dlpack(const DlpackTensor& shown, ArrayView& view) {
    const std::int64_t item = read_type(shown.type, view);
    read_axes(shown, view);
    const std::uintptr_t address = address_of(shown);
    if (shown.data == nullptr && !is_empty(view.shape))
        refuse(view.name, "a pointer that is not null", "null");
    if (address % static_cast<std::uintptr_t>(item) != 0)
        refuse(view.name, "a pointer aligned to its items", std::to_string(address));
    return reinterpret_cast<void*>(address);
}

std::optional<DenseFloats> dense_floats(const DlpackTensor& shown) {
    const std::uintptr_t address = address_of(shown);
    const bool is_float =
        shown.type.code == dlpack_code::real && shown.type.bits == 32 && shown.type.lanes == 1;
    if (!is_float || shown.data == nullptr || address % sizeof(float) != 0) return std::nullopt;
    if (shown.axes < 0 || (shown.axes > 0 && (shown.shape == nullptr || shown.strides == nullptr)))
        return std::nullopt;
    std::int64_t count = 1;
    for (std::int32_t axis = 0; axis < shown.axes; ++axis) {
        if (shown.shape[axis] < 1 || shown.shape[axis] > most_elements / count) return std::nullopt;
        count *= shown.shape[axis];
    }
    // Strides of a dense array grow from axis to axis, so that no axis is found twice.
    for (std::int64_t packed = 1; packed != count;) {
        const std::int32_t axis = axis_of_stride(shown, packed);
        if (axis < 0) return std::nullopt;
        packed *= shown.shape[axis];
    }
    return DenseFloats{reinterpret_cast<float*>(address), count};
}

}  // namespace hpcai500::bindings
