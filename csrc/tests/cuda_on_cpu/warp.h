// The functions that the lanes of a warp call together.
#pragma once

#include <cstdint>
#include <cstring>

#include "grid.h"

namespace hpcai500::cuda_on_cpu {

inline int lane() {
    return static_cast<int>(here->thread.x) % 32;
}

/// The value of lane `source`, or the own one where that is outside of [begin, end).
template <class Value>
Value shuffled(unsigned mask, Value value, int source, int begin, int end, Line line) {
    static_assert(sizeof(Value) == 2 || sizeof(Value) == 4 || sizeof(Value) == 8);
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    const int taken = source >= begin && source < end ? source : lane();
    bits = meet_warp({WarpOperation::shuffle, mask, bits, taken}, line);
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline unsigned ballot(unsigned mask, bool vote, Line line) {
    return static_cast<unsigned>(meet_warp({WarpOperation::ballot, mask, vote ? 1u : 0u, 0}, line));
}

/// The lanes of each group of `width` keep to themselves.
inline int group_begin(int width) {
    return lane() / width * width;
}

}  // namespace hpcai500::cuda_on_cpu

#define HPCAI500_LINE const char *file = __builtin_FILE(), int line = __builtin_LINE()

template <class Value>
Value __shfl_sync(unsigned mask, Value value, int source, int width = 32, HPCAI500_LINE) {
    const int begin = hpcai500::cuda_on_cpu::group_begin(width);
    return hpcai500::cuda_on_cpu::shuffled(mask, value, begin + (source & (width - 1)), begin, begin + width,
                                           {file, line});
}
template <class Value>
Value __shfl_down_sync(unsigned mask, Value value, unsigned distance, int width = 32, HPCAI500_LINE) {
    const int begin = hpcai500::cuda_on_cpu::group_begin(width);
    return hpcai500::cuda_on_cpu::shuffled(mask, value,
                                           hpcai500::cuda_on_cpu::lane() + static_cast<int>(distance), begin,
                                           begin + width, {file, line});
}
template <class Value>
Value __shfl_xor_sync(unsigned mask, Value value, int bits, int width = 32, HPCAI500_LINE) {
    const int begin = hpcai500::cuda_on_cpu::group_begin(width);
    // Lower groups may be read as well.
    return hpcai500::cuda_on_cpu::shuffled(mask, value, hpcai500::cuda_on_cpu::lane() ^ bits, 0,
                                           begin + width, {file, line});
}
inline int __any_sync(unsigned mask, bool vote, HPCAI500_LINE) {
    return hpcai500::cuda_on_cpu::ballot(mask, vote, {file, line}) != 0;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, HPCAI500_LINE) {
    hpcai500::cuda_on_cpu::meet_warp({hpcai500::cuda_on_cpu::WarpOperation::sync, mask, 0, 0}, {file, line});
}

#undef HPCAI500_LINE
