// Kernels for 64-bit Arm.
#include "neon.h"

#include "kernels.inl"

HPCAI500_KERNELS(neon)
