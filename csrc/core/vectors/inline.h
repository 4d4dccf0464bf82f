// How the functions of a kernel are declared: where compilers judge for themselves, they leave vectors in
// memory.
#pragma once

#define HPCAI500_INLINE inline __attribute__((always_inline))
#define HPCAI500_RARE __attribute__((noinline, cold))
