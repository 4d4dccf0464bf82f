// The types of values on the device, by their bits, and runs of values that are read and written by one
// instruction.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace hpcai500::cuda_items {

struct Float32 {
    using Item = std::uint32_t;
    static __device__ float widen(Item item) { return __uint_as_float(item); }
    static __device__ Item narrow(float value) { return __float_as_uint(value); }
};
struct Float16 {
    using Item = std::uint16_t;
    static __device__ float widen(Item item) { return __half2float(__ushort_as_half(item)); }
    static __device__ Item narrow(float value) { return __half_as_ushort(__float2half_rn(value)); }
};
/// To nearest even; a NaN becomes some NaN.
struct BFloat16 {
    using Item = std::uint16_t;
    static __device__ float widen(Item item) { return __uint_as_float(static_cast<unsigned>(item) << 16); }
    static __device__ Item narrow(float value) {
#if __CUDA_ARCH__ >= 800
        Item item;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(item) : "f"(value));
        return item;
#else
        // As on the processor: rounded by the addition, which would carry some NaN into infinity.
        const unsigned bits = __float_as_uint(value);
        const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
        return static_cast<Item>((nan ? bits | 0x00400000u : bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
#endif
    }
};

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

}  // namespace hpcai500::cuda_items
