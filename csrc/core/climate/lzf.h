// LZF, the fast compression that h5py brings to HDF5 (filter 32000; the format of Marc Lehmann's LibLZF).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace hpcai500 {

/// Expands `compressed` into `out`. Returns how many bytes it made, or nothing when the data is damaged: it
/// ends within an item, refers back before its own beginning, or holds more than `out` has room for.
std::optional<std::size_t> expand_lzf(std::span<const std::uint8_t> compressed, std::span<std::uint8_t> out);

}  // namespace hpcai500
