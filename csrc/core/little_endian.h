// Numbers in files of ours: the least byte first, whatever the processor has.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hpcai500 {

template <std::unsigned_integral Number>
Number load_little(const std::uint8_t* bytes) {
    Number value = 0;
    for (std::size_t i = 0; i < sizeof value; ++i)
        value = static_cast<Number>(value | static_cast<Number>(bytes[i]) << (8 * i));
    return value;
}

template <std::unsigned_integral Number>
void append_little(std::vector<std::uint8_t>& to, Number value) {
    for (std::size_t i = 0; i < sizeof value; ++i) to.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
}

}  // namespace hpcai500
