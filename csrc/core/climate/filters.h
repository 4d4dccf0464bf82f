// Undoes what HDF5's filters did to a chunk.
#pragma once

#include <libdeflate.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/grow_buffer.h"

namespace hpcai500 {

enum class Filter { deflate, shuffle, fletcher32, lzf };

/// More of them HDF5 does not allow: a chunk's mask has 32 bits.
inline constexpr std::size_t most_filters = 32;

/// Size of a stored value: shuffle works on float32.
inline constexpr std::size_t value_bytes = 4;

/// The largest that filters may have made a chunk of `bytes` bytes: deflate lets incompressible data grow by
/// a thousandth, a checksum takes four bytes.
constexpr std::uint64_t most_stored_bytes(std::uint64_t bytes) {
    return bytes + bytes / 16 + 4096;
}

/// A chunk's values, in memory of the decoder's or of the caller's.
struct DecodedChunk {
    const std::uint8_t* bytes;
    bool shuffled;  ///< in planes of equal bytes of all values: whoever converts them puts them together
};

/// Undoes filters; one object per thread, reused for all chunks. Its memory is three times the largest chunk.
class ChunkDecoder {
  public:
    ChunkDecoder();

    /// `filters` are in the order of writing; bit i of `mask` says that filter i was left out. The result has
    /// `values` values and is valid until the next call and as long as `stored` is.
    /// Throws DecodeError (corrupt) with the reason.
    DecodedChunk decode(std::span<const std::uint8_t> stored, const std::vector<Filter>& filters,
                        std::uint32_t mask, std::size_t values);

  private:
    std::span<const std::uint8_t> undo(Filter filter, std::span<const std::uint8_t> bytes, std::size_t most);
    std::span<std::uint8_t> fresh(std::size_t size, const std::uint8_t* in_use);

    struct Free {
        void operator()(libdeflate_decompressor* decompressor) const {
            libdeflate_free_decompressor(decompressor);
        }
    };
    std::unique_ptr<libdeflate_decompressor, Free> decompressor_;
    GrowBuffer<std::uint8_t> first_, second_;
};

}  // namespace hpcai500
