// The L2 norms of many tensors in one pass.
#pragma once

#include "bucket.h"

namespace hpcai500 {

/// norms[t] = sqrt(sum of squares of tensor t), squared and summed in double: the squares are exact, and no
/// float overflows or vanishes. The relative error is below 1e-10 for any tensor of up to 2^40 values (n
/// additions cost at most n / 32 * 2^-53 within a lane of a piece, and a piece has at most 2^18 values).
/// Infinite and NaN values give what they give in NumPy. Neither threads nor instruction set change a bit.
void layer_norms(SourceTensors tensors, double* norms, int threads);

}  // namespace hpcai500
