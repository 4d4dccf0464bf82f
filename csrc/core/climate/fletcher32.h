// The checksum of HDF5's fletcher32 filter.
#pragma once

#include <cstdint>
#include <span>

namespace hpcai500 {

/// Fletcher's checksum over 16-bit words, high byte first; an odd last byte counts as the high byte of a
/// word. Both sums are kept modulo 65535, with 65535 in the place of 0 (H5_checksum_fletcher32 of the HDF5
/// library).
std::uint32_t fletcher32(std::span<const std::uint8_t> bytes);

}  // namespace hpcai500
