// A sound JPEG file, where a fuzz target's bytes are something else.
#pragma once

#include <cstdint>
#include <vector>

namespace hpcai500 {

/// 4:2:0 with all kinds of coefficients, in the file's usual codes.
std::vector<std::uint8_t> make_jpeg(int width, int height);

}  // namespace hpcai500
