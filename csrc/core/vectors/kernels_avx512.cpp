// Compiled with AVX-512 F, BW, DQ and VL, BMI and BMI2, and run only where the processor has them.
#include "avx512.h"

#include "kernels.inl"

HPCAI500_KERNELS(avx512)
