// Where the int8 form of a bucket has its scales and codes. Constants only: the kernels include it.
//
// The bucket's values, one tensor after the other, are cut into blocks of 256 without regard to where a
// tensor ends. Sixteen blocks are a chunk: 16 scales (float32, little-endian), then 16 x 256 codes (int8).
//
//     chunk 0                                        chunk 1
//     | 16 scales, 64 B | 16 x 256 codes, 4096 B |   | 64 B | 4096 B |   ...
//
// A chunk is 65 cache lines and means something by itself, so that a buffer can be cut into equal shards at
// any multiple of 4160 bytes (4096 values), as a reduce-scatter by all-to-all does. The last chunk is whole:
// what lies behind the last value has code 0, blocks behind it scale 0.
#pragma once

#include <cstdint>

namespace hpcai500 {

inline constexpr std::int64_t quantised_block = 256;  ///< values that share a scale
inline constexpr std::int64_t quantised_chunk_blocks = 16;
inline constexpr std::int64_t quantised_chunk = quantised_block * quantised_chunk_blocks;
inline constexpr std::int64_t quantised_chunk_bytes = quantised_chunk_blocks * 4 + quantised_chunk;

}  // namespace hpcai500
