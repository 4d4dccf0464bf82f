// The format of a seek index: a header, then the points of each file behind a checksum, then a table sorted
// by key.
//
//   header   "HPC5SEEK", version (4 bytes), CRC-32 of the table (4), where the table begins (8),
//            entries (4), CRC-32 of the header before this (4)
//   points   CRC-32 of key and points (4), points as baseline::SeekPoints has them
//   entry    CRC-32 of a file, its bytes (4 each), where its points begin (8), their bytes with the
//            checksum (4)
//
// All numbers have the least byte first. An entry whose points have 0 bytes is of a file that has none.
#pragma once

#include <libdeflate.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "seek_index.h"

namespace hpcai500::seek_format {

inline constexpr std::string_view magic = "HPC5SEEK";
inline constexpr std::uint32_t version = 1;
inline constexpr std::size_t header_bytes = 32, checksum_bytes = 4;
/// 336 MB of table; ImageNet has 1.3 million files.
inline constexpr std::uint32_t most_files = 1U << 24;

inline std::uint32_t crc(std::span<const std::uint8_t> bytes, std::uint32_t before = 0) {
    return libdeflate_crc32(before, bytes.data(), bytes.size());
}

/// The checksum before the points of a file.
std::uint32_t checksum_of(const SeekKey& key, std::span<const std::uint8_t> points);

}  // namespace hpcai500::seek_format
