// The part of DLPack 1.3 by which a type shows the memory of its arrays without a dictionary, a capsule or an
// allocation for each (https://dmlc.github.io/dlpack/latest/). Declared here, as the specification lays it
// out, and not taken from a framework's header: one build serves every version of torch.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>

namespace hpcai500::bindings {

/// Kinds of memory, as `device_type` has them.
namespace dlpack_device {
inline constexpr std::int32_t processor = 1, cuda = 2, cuda_host = 3, cuda_managed = 13;
}

/// Kinds of items, as `code` counts them from 0: whole numbers, natural numbers, real numbers, pointers,
/// bfloat16, complex numbers, booleans.
inline constexpr std::uint8_t dlpack_real = 2, dlpack_bfloat = 4;

struct DlpackType {
    std::uint8_t code, bits;
    std::uint16_t lanes;
};

/// Memory that its owner keeps, shape and strides included. Strides are in items; null where the array is
/// contiguous.
struct DlpackTensor {
    void* data;
    std::int32_t device_type, device_id, axes;
    DlpackType type;
    const std::int64_t *shape, *strides;
    std::uint64_t byte_offset;
};
static_assert(offsetof(DlpackTensor, type) == sizeof(void*) + 12 &&
              offsetof(DlpackTensor, byte_offset) == 3 * sizeof(void*) + 16);

/// What every version of the table begins with. `previous` is of a table of an older version, or null.
struct DlpackHeader {
    std::uint32_t major, minor;
    const DlpackHeader* previous;
};

/// The table of version 1: 0 on success, -1 with a Python exception. `show` may be null; it says nothing
/// about whether the memory may be written.
struct DlpackExchange {
    using Function = void (*)();
    DlpackHeader header;
    Function allocate, hand_over, take_over;  // not used here: they allocate, and change who owns what
    int (*show)(PyObject* object, DlpackTensor* shown);
    Function current_stream;
};

}  // namespace hpcai500::bindings
