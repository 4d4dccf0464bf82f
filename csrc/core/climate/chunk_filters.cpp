#include "chunk_filters.h"

#include <cstring>
#include <new>
#include <string>

#include "core/failure.h"
#include "fletcher32.h"
#include "lzf.h"

namespace hpcai500 {
namespace {

constexpr std::size_t checksum_bytes = 4;

[[noreturn]] void corrupt(const std::string& reason) {
    throw DecodeError(FailureKind::corrupt, reason);
}

std::span<const std::uint8_t> without_checksum(std::span<const std::uint8_t> bytes) {
    if (bytes.size() < checksum_bytes) corrupt("the chunk is too short for its checksum");
    const auto data = bytes.first(bytes.size() - checksum_bytes);
    std::uint32_t stored;
    std::memcpy(&stored, data.data() + data.size(), sizeof stored);
    const std::uint32_t computed = fletcher32(data);
    // HDF5 up to 1.6.2 exchanged the bytes of each half on little-endian machines, and later ones accept it.
    const std::uint32_t exchanged = (computed & 0x00ff00ff) << 8 | (computed >> 8 & 0x00ff00ff);
    if (stored != computed && stored != exchanged)
        corrupt("the checksum (fletcher32) is not that of the data");
    return data;
}

// Bytes that do not fill a value (where shuffle came after a compression) stay at the end as they are.
void unshuffle(std::span<const std::uint8_t> bytes, std::uint8_t* out) {
    const std::size_t values = bytes.size() / value_bytes;
    for (std::size_t i = 0; i < values; ++i)
        for (std::size_t plane = 0; plane < value_bytes; ++plane)
            out[value_bytes * i + plane] = bytes[plane * values + i];
    const std::size_t rest = values * value_bytes;
    if (rest < bytes.size()) std::memcpy(out + rest, bytes.data() + rest, bytes.size() - rest);
}

// The most bytes that filter i can have been given, when it was written.
std::size_t most_given(const std::vector<Filter>& filters, std::uint32_t mask, std::size_t i,
                       std::size_t chunk_bytes) {
    std::size_t most = chunk_bytes;
    for (std::size_t inner = 0; inner < i; ++inner) {
        if ((mask >> inner & 1) != 0 || filters[inner] == Filter::shuffle) continue;
        most = filters[inner] == Filter::fletcher32 ? most + checksum_bytes
                                                    : static_cast<std::size_t>(most_stored_bytes(most));
    }
    return most;
}

}  // namespace

ChunkDecoder::ChunkDecoder() : decompressor_(libdeflate_alloc_decompressor()) {
    if (!decompressor_) throw std::bad_alloc();
}

// Of the two buffers, the one that `in_use` does not lie in.
std::span<std::uint8_t> ChunkDecoder::fresh(std::size_t size, const std::uint8_t* in_use) {
    GrowBuffer<std::uint8_t>& buffer = in_use != nullptr && in_use == first_.data() ? second_ : first_;
    return {buffer.reserve(size), size};
}

std::span<const std::uint8_t> ChunkDecoder::undo(Filter filter, std::span<const std::uint8_t> bytes,
                                                 std::size_t most) {
    switch (filter) {
        case Filter::fletcher32:
            return without_checksum(bytes);
        case Filter::shuffle: {
            const auto out = fresh(bytes.size(), bytes.data());
            unshuffle(bytes, out.data());
            return out;
        }
        case Filter::lzf: {
            const auto out = fresh(most, bytes.data());
            const auto made = expand_lzf(bytes, out);
            if (!made) corrupt("lzf fails: the data is damaged");
            return out.first(*made);
        }
        case Filter::deflate:
            break;
    }
    const auto out = fresh(most, bytes.data());
    std::size_t made = 0;
    const auto result = libdeflate_zlib_decompress(decompressor_.get(), bytes.data(), bytes.size(),
                                                   out.data(), out.size(), &made);
    if (result == LIBDEFLATE_INSUFFICIENT_SPACE) corrupt("inflate makes more bytes than the chunk has");
    if (result != LIBDEFLATE_SUCCESS) corrupt("inflate fails: the data is damaged");
    return out.first(made);
}

DecodedChunk ChunkDecoder::decode(std::span<const std::uint8_t> stored, const std::vector<Filter>& filters,
                                  std::uint32_t mask, std::size_t values) {
    const std::size_t expected = values * value_bytes;
    std::size_t innermost = 0;  // of those that were applied, the first in the order of writing
    while (innermost < filters.size() && (mask >> innermost & 1) != 0) ++innermost;
    auto bytes = stored;
    bool shuffled = false;
    for (std::size_t i = filters.size(); i-- > innermost;) {
        if ((mask >> i & 1) != 0) continue;
        if (i == innermost && filters[i] == Filter::shuffle) {
            shuffled = true;
        } else {
            bytes = undo(filters[i], bytes, most_given(filters, mask, i, expected));
        }
    }
    if (bytes.size() != expected)
        corrupt("the chunk has " + std::to_string(bytes.size()) + " bytes instead of " +
                std::to_string(expected));
    return {bytes.data(), shuffled};
}

}  // namespace hpcai500
