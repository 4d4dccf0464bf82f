// What each translation unit of a kernel begins with.
#pragma once

#include "core/vectors/inline.h"

#define HPCAI500_RARE __attribute__((noinline, cold))
