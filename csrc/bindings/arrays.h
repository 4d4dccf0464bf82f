// Arrays that Python hands in: NumPy's, what a type shows by DLPack's table of functions (torch's has one),
// and in device memory also what the dictionary `__cuda_array_interface__` describes (versions 2 and 3),
// which torch takes microseconds to make. All become one view of shape, type and strides, checked by the same
// functions wherever the memory lies; nothing that a foreign type says is believed. Messages name the
// argument, what is expected and what came.
#pragma once

#include <pybind11/numpy.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/jpeg/spec.h"

namespace hpcai500::bindings {

/// An argument, or with an index one of a sequence of them.
struct ArrayName {
    static constexpr std::size_t none_of_several = static_cast<std::size_t>(-1);
    const char* name;
    std::size_t index = none_of_several;

    /// "sources[3]"
    std::string text() const;
};

/// Where an argument must lie: in the processor's memory, on some CUDA device, or on one of them. A
/// dictionary does not tell on which.
struct Place {
    enum Kind { processor, any_device, one_device } kind;
    int device = 0;
};
inline constexpr Place processor{Place::processor}, any_device{Place::any_device};
constexpr Place on_device(int device) {
    return {Place::one_device, device};
}

/// Of a step that is no whole number of elements: equal to no step of a packed array.
inline constexpr std::int64_t no_stride = -1;

/// Memory that somebody else owns. Strides are in elements.
struct ArrayView {
    std::string name, type;  ///< the type as in NumPy's typestr, without byte order: f4, f8, f2, u2, i8, u1
    std::vector<std::int64_t> shape, strides;
    void* data = nullptr;
    bool read_only = false;

    /// Elements: at most 2**48 on a device.
    std::int64_t count() const;
    /// "(2, 3)"
    std::string shape_text() const;
    /// The memory; value_error where it must not be written.
    void* writable() const;
};

/// An array at `place`: in the processor's memory NumPy's, on a device any that shows or describes itself; a
/// bfloat16 has the type of its bits, u2. Throws type_error for what is no such array, value_error where what
/// is said lacks something, contradicts itself, or is of another device.
ArrayView read_array(const pybind11::handle& object, const ArrayName& name, const Place& place);

/// NumPy's images of `dtype`, C-contiguous, at any address. NumPy has no bfloat16: its bits are u2.
ArrayView read_images(const pybind11::handle& object, const ArrayName& name, DType dtype, bool written);

/// A float32 tensor that is dense: some order of its axes visits memory without a gap.
struct DenseFloats {
    float* data;
    std::int64_t count;
};

/// As read_array, and DLPack's in the processor's memory, too; value_error for what is not float32 and dense.
/// What nearly every tensor is, is found without memory of our own: a bucket has hundreds.
DenseFloats read_dense_floats(const pybind11::handle& object, const ArrayName& name, const Place& place,
                              bool written);

void expect_axes(const ArrayView& view, std::size_t axes, const char* shape);
void expect_contiguous(const ArrayView& view);
/// (count,) of `type`, one for each `item`, C-contiguous.
void expect_per_item(const ArrayView& view, std::int64_t count, const std::string& type,
                     const std::string& item);
/// (n,) of `type` and at least `least` items, without gaps.
void expect_flat(const ArrayView& view, const std::string& type, std::int64_t least);

/// Whether (images, channels, height, width) is contiguous with its channels last, in memory.
bool has_channels_last(const ArrayView& view);
/// Whether only so; value_error where it is contiguous neither with channels first nor last.
bool expect_channels_last(const ArrayView& view);

}  // namespace hpcai500::bindings
