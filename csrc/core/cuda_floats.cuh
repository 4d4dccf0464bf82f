// The floating-point types of buffers and images on the device, by their bits.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace hpcai500 {

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

}  // namespace hpcai500
