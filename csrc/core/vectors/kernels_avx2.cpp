// Compiled with AVX2, FMA, F16C, BMI and BMI2, and run only where the processor has them.
#include "avx2.h"

#include "kernels.inl"

HPCAI500_KERNELS(avx2)
