// Levels on the device, and runs of values that are read and written by one instruction.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/cuda_floats.cuh"

namespace hpcai500::image_items {

struct UInt8 {
    using Item = std::uint8_t;
    static __device__ float widen(Item item) { return static_cast<float>(item); }
};

/// Values that follow one another, aligned so that a copy of them is one instruction; at most 16 bytes.
template <class Item, int count>
struct alignas(sizeof(Item) * count) Run {
    static_assert(sizeof(Item) * count <= 16);
    Item item[count];
};

/// The longest run of a type.
template <class Item>
inline constexpr int longest_run = static_cast<int>(16 / sizeof(Item));

/// Reads `count` values, in as few instructions as there are.
template <int count, class Item>
__device__ inline void load(const Item* from, Item* values) {
    constexpr int length = count < longest_run<Item> ? count : longest_run<Item>;
#pragma unroll
    for (int at = 0; at < count; at += length) {
        const auto run = *reinterpret_cast<const Run<Item, length>*>(from + at);
#pragma unroll
        for (int i = 0; i < length; ++i) values[at + i] = run.item[i];
    }
}

/// Writes `count` values, in as few instructions as there are.
template <int count, class Item>
__device__ inline void store(const Item* values, Item* out) {
    constexpr int length = count < longest_run<Item> ? count : longest_run<Item>;
#pragma unroll
    for (int at = 0; at < count; at += length) {
        Run<Item, length> run;
#pragma unroll
        for (int i = 0; i < length; ++i) run.item[i] = values[at + i];
        *reinterpret_cast<Run<Item, length>*>(out + at) = run;
    }
}

}  // namespace hpcai500::image_items
