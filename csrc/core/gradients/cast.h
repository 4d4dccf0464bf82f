// A bucket of float32 tensors to one buffer of another type, and back, in one pass.
#pragma once

#include <cstddef>

#include "bucket.h"

namespace hpcai500 {

/// The type of a buffer that is sent.
enum class Wire { float32, float16, bfloat16 };

std::size_t item_size(Wire wire);

/// out[at + i] = cast(scale * tensor[i]) for the tensors in order: the product is rounded to float32, then to
/// the wire's type, both to nearest even. What float16 cannot hold becomes infinite, subnormal numbers are
/// kept, NaN stays NaN. With `norms`, norms[t] is the L2 norm of tensor t before the scale.
///
/// `out` holds the sum of the sizes, is aligned to its items and overlaps no tensor. No value depends on
/// `threads` or on the instruction set.
void pack(SourceTensors sources, void* out, Wire wire, float scale, double* norms, int threads);

/// target[i] = scale * float32(source[at + i]), rounded once; norms are those of what was written.
void unpack(const void* source, TargetTensors targets, Wire wire, float scale, double* norms, int threads);

/// Whether writing this many bytes bypasses the cache: they would push out what is needed before they are.
bool stream_past_cache(std::int64_t bytes);

}  // namespace hpcai500
