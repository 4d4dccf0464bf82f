// What each translation unit of a kernel begins with.
#pragma once

#define HPCAI500_INLINE inline __attribute__((always_inline))
#define HPCAI500_RARE __attribute__((noinline, cold))
