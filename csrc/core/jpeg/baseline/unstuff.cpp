// A file of its own: csrc/tests/drivers/decode_stages.cpp puts one with a clock in its place.
#include <cstring>

#include "decoder.h"

namespace hpcai500::baseline {

Unstuffed unstuff(std::span<const std::uint8_t> data, std::uint8_t* out) {
    const std::uint8_t* const begin = data.data();
    const std::uint8_t* const end = begin + data.size();
    const std::uint8_t* next = begin;
    std::uint8_t* const first = out;
    for (;;) {
        const auto left = static_cast<std::size_t>(end - next);
        const auto* found =
            left == 0 ? nullptr : static_cast<const std::uint8_t*>(std::memchr(next, 0xFF, left));
        const bool stuffed = found != nullptr && end - found >= 2 && found[1] == 0;
        const std::size_t plain =
            static_cast<std::size_t>((found == nullptr ? end : found) - next) + (stuffed ? 1 : 0);
        if (plain > 0) std::memcpy(out, next, plain);
        out += plain;
        next += plain;
        if (!stuffed) break;
        ++next;
    }
    std::memset(out, 0, padding_bytes);
    return {static_cast<std::size_t>(next - begin), static_cast<std::size_t>(out - first)};
}

}  // namespace hpcai500::baseline
