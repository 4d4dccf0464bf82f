// Entropy-coded data as the bit reader takes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace hpcai500::baseline {

struct Unstuffed {
    std::size_t read;     ///< bytes of the file; a marker, or the file's end, follows them
    std::size_t written;  ///< bytes without stuffing
};

/// Copies data until the next marker, without the zeros that stand behind each 0xFF (T.81, F.1.2.3), and
/// padding_bytes zeros behind it. `out` has room for data.size() + padding_bytes.
Unstuffed unstuff(std::span<const std::uint8_t> data, std::uint8_t* out);

}  // namespace hpcai500::baseline
