#include "filters.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <string>

#include "core/failure.h"

namespace hpcai500 {
namespace {

constexpr std::size_t checksum_bytes = 4;

[[noreturn]] void corrupt(const std::string& reason) {
    throw DecodeError(FailureKind::corrupt, reason);
}

// The weighted sum of so many words of 16 bits fits into 32 bits: 65535 * 361 * 360 / 2 < 2^32.
constexpr std::size_t block_words = 360;

constexpr std::uint64_t fold(std::uint64_t sum) {
    while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
    return sum;
}

constexpr std::uint32_t word(const std::uint8_t* bytes) {
    return static_cast<std::uint32_t>(bytes[0]) << 8 | bytes[1];
}

// HDF5's fletcher32: Fletcher's checksum over 16-bit words, high byte first; an odd last byte counts as the
// high byte of a word. Both sums are kept modulo 65535, with 65535 in the place of 0 (H5_checksum_fletcher32
// of the HDF5 library).
std::uint32_t fletcher32(std::span<const std::uint8_t> bytes) {
    std::uint64_t first = 0, second = 0;
    const std::size_t words = bytes.size() / 2;
    for (std::size_t done = 0; done < words; done += block_words) {
        const std::size_t count = std::min(block_words, words - done);
        const std::uint8_t* block = bytes.data() + 2 * done;
        // Two independent sums, which a compiler makes vectors of: the n-th word from the end is in `second`
        // n times.
        std::uint32_t plain = 0, weighted = 0;
        for (std::size_t i = 0; i < count; ++i) {
            plain += word(block + 2 * i);
            weighted += static_cast<std::uint32_t>(count - i) * word(block + 2 * i);
        }
        second = fold(second + count * first + weighted);
        first = fold(first + plain);
    }
    if (bytes.size() % 2 != 0) {
        first = fold(first + (static_cast<std::uint32_t>(bytes.back()) << 8));
        second = fold(second + first);
    }
    return static_cast<std::uint32_t>(second << 16 | first);
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

constexpr unsigned most_literals = 32;  // a smaller first byte announces a run of literals
constexpr unsigned long_copy = 7;       // in three bits; then a byte more adds to the length

// A copy may read what it has just written: that is how LZF repeats a short pattern.
void copy_back(std::uint8_t* to, std::size_t distance, std::size_t length) {
    const std::uint8_t* from = to - distance;
    if (distance >= length) {
        std::memcpy(to, from, length);
        return;
    }
    for (std::size_t i = 0; i < length; ++i) to[i] = from[i];
}

// LZF, the fast compression that h5py brings to HDF5 (filter 32000; the format of Marc Lehmann's LibLZF).
// Returns how many bytes it made, or nothing when the data is damaged: it ends within an item, refers back
// before its own beginning, or holds more than `out` has room for.
std::optional<std::size_t> expand_lzf(std::span<const std::uint8_t> compressed, std::span<std::uint8_t> out) {
    const std::size_t size = compressed.size();
    std::size_t at = 0, made = 0;
    while (at < size) {
        const unsigned control = compressed[at++];
        if (control < most_literals) {
            const std::size_t length = control + 1;
            if (length > size - at || length > out.size() - made) return std::nullopt;
            std::memcpy(out.data() + made, compressed.data() + at, length);
            at += length;
            made += length;
            continue;
        }
        std::size_t length = control >> 5;
        if (length == long_copy) {
            if (at == size) return std::nullopt;
            length += compressed[at++];
        }
        length += 2;
        if (at == size) return std::nullopt;
        const std::size_t distance = ((control & 0x1f) << 8 | compressed[at++]) + std::size_t{1};
        if (distance > made || length > out.size() - made) return std::nullopt;
        copy_back(out.data() + made, distance, length);
        made += length;
    }
    return made;
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
