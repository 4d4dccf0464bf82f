// Seeded numbers, of which the drivers make their inputs.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace hpcai500::drivers {

using Random = std::mt19937_64;
using Bytes = std::vector<std::uint8_t>;

/// 0 to bound - 1.
template <class Number>
Number below(Random& random, Number bound) {
    return static_cast<Number>(random() % static_cast<std::uint64_t>(bound));
}

inline float any_float(Random& random) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(random()));
}

/// The bits of a float, or of one of two bytes. All NaN are one: which comes out of several is the compiler's
/// choice.
inline std::uint32_t bits_at(const std::uint8_t* place, std::size_t item, std::uint32_t infinity) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, place, item);
    const std::uint32_t sign = 1u << (8 * item - 1);
    return (bits & ~sign) > infinity ? ~0u : bits;
}
inline constexpr std::uint32_t infinite_float = 0x7f800000, infinite_half = 0x7c00, infinite_bfloat = 0x7f80;

}  // namespace hpcai500::drivers
