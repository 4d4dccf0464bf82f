// Kernels for every processor.
#include "portable.h"

#include "kernels.inl"

HPCAI500_KERNELS(portable)
