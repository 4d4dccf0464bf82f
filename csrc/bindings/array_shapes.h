// What a foreign array says of its shape, before anything is computed from it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hpcai500::bindings {

inline constexpr std::int64_t most_elements = std::int64_t{1} << 48;

/// Whether lengths are 0 or more and their product most_elements at most: sums and products of sizes then
/// stay far from where 64 bits end.
inline bool is_countable(const std::vector<std::int64_t>& shape) {
    std::int64_t left = most_elements;
    for (const std::int64_t length : shape) {
        if (length < 0 || length > left) return false;
        left /= std::max<std::int64_t>(length, 1);
    }
    return true;
}

inline bool is_empty(const std::vector<std::int64_t>& shape) {
    return std::find(shape.begin(), shape.end(), 0) != shape.end();
}

/// Those of an array whose last axis is the fastest, in elements.
inline std::vector<std::int64_t> contiguous_strides(const std::vector<std::int64_t>& shape) {
    std::vector<std::int64_t> strides(shape.size(), 1);
    for (std::size_t axis = shape.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * shape[axis];
    return strides;
}

}  // namespace hpcai500::bindings
