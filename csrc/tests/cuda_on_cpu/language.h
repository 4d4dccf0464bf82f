// What CUDA adds to C++, for a compiler of C++: the words, the coordinates of a thread, and the functions
// that need no header. A missing one is added here, in a line or two.
#pragma once

#include <math.h>

#include <bit>
#include <cstdint>
#include <type_traits>

#include "grid.h"
#include "warp.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __grid_constant__
#define __launch_bounds__(...)
// The address sanitizer puts fences round static variables; the thread sanitizer must see those of one block
// as other ones than the next block's, which has an OS thread of its own there. constinit: shared memory has
// no initialiser, and the first thread to come must not be seen to run one.
#ifdef HPCAI500_THREAD_SANITIZER
#define __shared__ static thread_local constinit
#else
#define __shared__ static constinit
#endif

#define threadIdx (::hpcai500::cuda_on_cpu::here->thread)
#define blockIdx (::hpcai500::cuda_on_cpu::here->block)
#define blockDim (::hpcai500::cuda_on_cpu::here->threads)
#define gridDim (::hpcai500::cuda_on_cpu::here->blocks)
inline constexpr int warpSize = 32;

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    hpcai500::cuda_on_cpu::meet_block({file, line});
}
inline void __threadfence() {
    hpcai500::cuda_on_cpu::fence();
}

inline unsigned __float_as_uint(float value) {
    return std::bit_cast<unsigned>(value);
}
inline float __uint_as_float(unsigned bits) {
    return std::bit_cast<float>(bits);
}

// Compiled without contraction: each is rounded once, as its name says.
inline float __fdiv_rn(float a, float b) {
    return a / b;
}

inline int __ffsll(long long bits) {
    return __builtin_ffsll(bits);
}

template <class Value>
Value __ldcg(const Value* place) {
    return *place;
}

template <class A, class B>
    requires(std::is_integral_v<A> && std::is_integral_v<B>)
constexpr auto min(A a, B b) {
    using Both = std::common_type_t<A, B>;
    return static_cast<Both>(b) < static_cast<Both>(a) ? static_cast<Both>(b) : static_cast<Both>(a);
}
template <class A, class B>
    requires(std::is_integral_v<A> && std::is_integral_v<B>)
constexpr auto max(A a, B b) {
    using Both = std::common_type_t<A, B>;
    return static_cast<Both>(a) < static_cast<Both>(b) ? static_cast<Both>(b) : static_cast<Both>(a);
}
inline float min(float a, float b) {
    return fminf(a, b);
}
inline float max(float a, float b) {
    return fmaxf(a, b);
}
inline double min(double a, double b) {
    return fmin(a, b);
}
inline double max(double a, double b) {
    return fmax(a, b);
}

// Relaxed, as CUDA's: an atomic operation orders nothing but itself.
template <class Value, class Change>
Value hpcai500_atomic(Value* place, const Change& change) {
    Value before, after;
    __atomic_load(place, &before, __ATOMIC_RELAXED);
    do after = change(before);
    while (!__atomic_compare_exchange(place, &before, &after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return before;
}
template <class Value>
Value atomicAdd(Value* place, std::type_identity_t<Value> value) {
    static_assert(sizeof(Value) >= 4, "needs a device of compute capability 7.0 or 8.0, and atomicAdd there");
    return hpcai500_atomic(place, [=](Value before) { return before + value; });
}
template <class Value>
Value atomicOr(Value* place, std::type_identity_t<Value> value) {
    return hpcai500_atomic(place, [=](Value before) { return before | value; });
}
