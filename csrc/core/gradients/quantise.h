// A bucket of float32 tensors to int8 with a scale for each block of 256 values (quantised_layout.h), and
// back, in one pass, with error feedback: what rounding took away is added to the next step's gradient (Seide
// et al. 2014, "1-bit stochastic gradient descent", section 3; Karimireddy et al. 2019, "Error feedback fixes
// SignSGD", algorithm 2).
#pragma once

#include "bucket.h"

namespace hpcai500 {

/// Bytes of the buffer of `count` values; std::invalid_argument unless count is in [0, 2^48].
std::int64_t quantised_bytes(std::int64_t count);

/// value = scale * tensor[i] + residual[at + i], both operations rounded to float32. Of a block whose largest
/// magnitude is a:
///
///   - 2^-119 <= a < the largest float: its scale is a / 127, code = nearest even of value * (127 / a), and
///     residual = value - code * (a / 127). |residual| <= a * 0.501 / 127.
///   - a < 2^-119 (1.5e-36; zeros, subnormal numbers): scale and codes are 0, residual = value.
///   - a the largest float, infinite or NaN: its scale is NaN, codes and residual are 0. All 256 values
///     become NaN: a number that is none does not pass for one, whoever looks at the sum sees it.
///
/// `buffer` has quantised_bytes(sum of sizes) bytes, all of which are written; `residual` as many values as
/// the tensors together, or is nullptr: 0, and not written. norms and `threads` are as of pack().
void quantise(SourceTensors sources, std::uint8_t* buffer, float* residual, float scale, double* norms,
              int threads);

/// target[i] = or += scale * (code * its block's scale), each operation rounded to float32; norms are those
/// of what was written. Any bytes are a buffer.
void dequantise(const std::uint8_t* buffer, TargetTensors targets, float scale, bool accumulate,
                double* norms, int threads);

}  // namespace hpcai500
