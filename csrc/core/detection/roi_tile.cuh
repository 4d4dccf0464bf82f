// Where channels are last, RoIAlign's pooled features, where they are first, are turned round in shared
// memory.
#pragma once

#include <cstdint>

#include "roi_taps.cuh"

namespace hpcai500 {

/// Some values of one element each, read and written at once where they are that many bytes.
template <class Element, int count>
struct alignas(count * sizeof(Element)) Pack {
    Element values[count];
};

/// Values of a roi's part on their way between a thread for each bin and a thread for each place in memory:
/// channels x bins.
inline constexpr int tile_bins = 64;
template <class Element>
struct alignas(16) Tile {
    Element values[roi_channels * tile_bins];
};

/// Bins [begin, begin + count) of a roi's part, in the pooled features.
struct TileBins {
    int begin, count;
};

/// Calls move<elements>(place in the part, place in the tile) so that the block's threads move all of a tile:
/// `wide` elements at once where the part begins at such an address and the tile has all bins.
template <class Element, class Move>
__device__ void each_of_tile(const Element* part, int channels, int bins, const TileBins& tile,
                             const Move& move) {
    constexpr int wide = 16 / sizeof(Element);
    const int all = channels * tile.count, thread = static_cast<int>(threadIdx.x);
    int done = 0;
    if (tile.count == bins && reinterpret_cast<std::uintptr_t>(part) % 16 == 0) {
        done = all / wide * wide;
#pragma unroll 1
        for (int i = thread * wide; i < done; i += roi_threads * wide) move.template operator()<wide>(i, i);
    }
#pragma unroll 1
    for (int i = done + thread; i < all; i += roi_threads) {
        const int channel = i / tile.count, bin = tile.begin + i % tile.count;
        move.template operator()<1>(static_cast<std::int64_t>(channel) * bins + bin, i);
    }
}

}  // namespace hpcai500
