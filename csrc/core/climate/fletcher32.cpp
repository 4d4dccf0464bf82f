#include "fletcher32.h"

#include <algorithm>
#include <cstddef>

namespace hpcai500 {
namespace {

// The weighted sum of so many words of 16 bits fits into 32 bits: 65535 * 361 * 360 / 2 < 2^32.
constexpr std::size_t block_words = 360;

constexpr std::uint64_t fold(std::uint64_t sum) {
    while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
    return sum;
}

constexpr std::uint32_t word(const std::uint8_t* bytes) {
    return static_cast<std::uint32_t>(bytes[0]) << 8 | bytes[1];
}

}  // namespace

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

}  // namespace hpcai500
