// Which instruction set the vector kernels use. One choice for all of them, made once, at run time.
#pragma once

namespace hpcai500 {

enum class Isa { portable, avx2, avx512, neon };

/// The best that this processor runs, or the one that the environment variable HPCAI500_ISA names.
/// Throws std::invalid_argument when the variable names one that is unknown, not compiled in or not supported
/// here.
Isa chosen_isa();

const char* name(Isa isa);

/// Names of the instruction sets in this build, separated by spaces, fastest first.
const char* compiled_isas();

}  // namespace hpcai500
