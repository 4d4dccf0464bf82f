// What a type shows by DLPack, checked: nothing of it is believed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "detection_arguments.h"
#include "dlpack_exchange.h"

namespace hpcai500::bindings {

/// "in the processor's memory", "on CUDA device 1"
std::string place_text(const DlpackTensor& shown);

/// Fills type, shape and strides of `view`, which has its name, and returns the memory. A bfloat16 has the
/// type of its bits, u2. Throws value_error where what is shown lacks something or contradicts itself.
void* read_dlpack(const DlpackTensor& shown, ArrayView& view);

struct DenseFloats {
    float* data;
    std::int64_t count;
};

/// The memory of a float32 tensor that is dense in some order of its axes, as nearly every gradient is, found
/// without memory of our own: a bucket has hundreds. Nothing where it is not, is empty or is wrong.
std::optional<DenseFloats> dense_floats(const DlpackTensor& shown);

}  // namespace hpcai500::bindings
