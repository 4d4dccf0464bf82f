// Four items at once: how the threads of a block read and write a tile (cuda_bucket.cuh), wherever it lies.
#pragma once

#include <cstdint>

#include "cuda_bucket.cuh"

namespace hpcai500 {

/// Read and written in one go where it is aligned to its size.
template <class Item>
struct alignas(4 * sizeof(Item)) Four {
    Item item[4];
};

inline constexpr int fours_of_thread = values_of_thread / 4;
/// A warp has a row of its tile's values: a lane the fours at first_of_lane() + row_of_warp * i.
inline constexpr int row_of_warp = 4 * warp_lanes;
inline constexpr int values_of_warp = row_of_warp * fours_of_thread;

__device__ inline int lane_of_thread() {
    return static_cast<int>(threadIdx.x) % warp_lanes;
}
__device__ inline int first_of_warp() {
    return static_cast<int>(threadIdx.x) / warp_lanes * values_of_warp;
}
__device__ inline int first_of_lane() {
    return first_of_warp() + 4 * lane_of_thread();
}

template <class Item>
__device__ inline bool aligned_to_four(const Item* items) {
    return reinterpret_cast<std::uintptr_t>(items) % sizeof(Four<Item>) == 0;
}

/// The thread's part of items[begin] to items[end] of a tile; zeros for the rest. All reads are on their way
/// before one is waited for. Where fours are not aligned, items are read one by one: the first-level cache
/// makes up for it.
template <class Item>
__device__ inline void load_fours(Four<Item> (&fours)[fours_of_thread], const Item* items, const Tile& tile) {
    const int first = first_of_lane();
    if (!tile.whole()) {
#pragma unroll
        for (int i = 0; i < values_of_thread; ++i) {
            const int place = first + i / 4 * row_of_warp + i % 4;
            fours[i / 4].item[i % 4] = place >= tile.begin && place < tile.end ? items[place] : Item{};
        }
    } else if (aligned_to_four(items)) {
#pragma unroll
        for (int i = 0; i < fours_of_thread; ++i)
            fours[i] = *reinterpret_cast<const Four<Item>*>(items + first + i * row_of_warp);
    } else {
#pragma unroll
        for (int i = 0; i < values_of_thread; ++i)
            fours[i / 4].item[i % 4] = items[first + i / 4 * row_of_warp + i % 4];
    }
}

/// Writes the thread's part of a tile to vector[past + begin] to vector[past + end], where `vector` is
/// aligned to four items. What a lane writes begins with the last `past` items of the lane below, so that all
/// but the ends of a warp's values are written by fours: single items would be four times as many writes to
/// the second-level cache.
template <int past, class Item>
__device__ inline void store_fours_past(const Four<Item> (&fours)[fours_of_thread], Item* vector,
                                        const Tile& tile) {
    constexpr int rows = fours_of_thread + (past > 0 ? 1 : 0);
    const int lane = lane_of_thread(), below = (lane + warp_lanes - 1) % warp_lanes;
    Four<Item> moved[rows], before{};
#pragma unroll
    for (int i = 0; i < rows; ++i) {
        Four<Item> own{};
        if (i < fours_of_thread) own = fours[i];
#pragma unroll
        for (int k = 0; k < past; ++k) {
            // The highest lane's belong to the lowest one's next four.
            const Item sent = lane == warp_lanes - 1 ? before.item[4 - past + k] : own.item[4 - past + k];
            moved[i].item[k] =
                static_cast<Item>(__shfl_sync(0xffffffffu, static_cast<unsigned>(sent), below));
        }
#pragma unroll
        for (int k = past; k < 4; ++k) moved[i].item[k] = own.item[k - past];
        before = own;
    }
    const int first = first_of_warp(), begin = past + max(tile.begin, first);
    const int end = past + min(tile.end, first + values_of_warp);
#pragma unroll
    for (int i = 0; i < rows; ++i) {
        const int place = first_of_lane() + i * row_of_warp;
        if (place >= begin && place + 4 <= end) {
            *reinterpret_cast<Four<Item>*>(vector + place) = moved[i];
        } else {
#pragma unroll
            for (int k = 0; k < 4; ++k)
                if (place + k >= begin && place + k < end) vector[place + k] = moved[i].item[k];
        }
    }
}

/// The same to items[begin] to items[end], wherever they lie.
template <class Item>
__device__ inline void store_fours(const Four<Item> (&fours)[fours_of_thread], Item* items,
                                   const Tile& tile) {
    // In bytes, as in own_tile().
    const std::uintptr_t past = reinterpret_cast<std::uintptr_t>(items) % sizeof(Four<Item>);
    auto* const vector = reinterpret_cast<Item*>(reinterpret_cast<char*>(items) - past);
    switch (past / sizeof(Item)) {
        case 0:
            return store_fours_past<0>(fours, vector, tile);
        case 1:
            return store_fours_past<1>(fours, vector, tile);
        case 2:
            return store_fours_past<2>(fours, vector, tile);
        default:
            return store_fours_past<3>(fours, vector, tile);
    }
}

/// The thread's part of a tile's values, which are aligned.
__device__ inline void load_values(float (&values)[values_of_thread], const Tile& tile) {
    Four<float> fours[fours_of_thread];
    load_fours(fours, tile.values, tile);
#pragma unroll
    for (int i = 0; i < values_of_thread; ++i) values[i] = fours[i / 4].item[i % 4];
}
__device__ inline void store_values(const float (&values)[values_of_thread], const Tile& tile) {
    Four<float> fours[fours_of_thread];
#pragma unroll
    for (int i = 0; i < values_of_thread; ++i) fours[i / 4].item[i % 4] = values[i];
    store_fours_past<0>(fours, tile.values, tile);
}

}  // namespace hpcai500
