#include "lzf.h"

#include <cstring>

namespace hpcai500 {
namespace {

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

}  // namespace

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

}  // namespace hpcai500
