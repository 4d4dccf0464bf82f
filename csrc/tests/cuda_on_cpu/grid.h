// Runs a kernel's blocks one after another, and the threads of each in turns.
#pragma once

#include <cstdint>

// CUDA's vector types, as far as our kernels use them.
struct alignas(16) int4 {
    int x, y, z, w;
};
struct uint3 {
    unsigned x, y, z;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned width = 1, unsigned height = 1, unsigned depth = 1)
        : x(width), y(height), z(depth) {}
};
inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}

namespace hpcai500::cuda_on_cpu {

/// In which order blocks, and the threads that may go on, have their turns. CUDA promises none: a kernel's
/// result must not depend on it.
enum class Order { forward, reverse, random };
void set_order(Order order, std::uint64_t seed = 0);

/// A kernel with its arguments.
struct Grid {
    const char* what;
    dim3 blocks;
    unsigned threads;
    void (*body)(void*);
    void* argument;
};

/// Returns when all threads have ended. Throws std::invalid_argument for a size that no device runs, and
/// std::logic_error where threads wait that can never go on, or wait in a way that CUDA leaves undefined.
void run(const Grid& grid);

/// Of the thread that runs.
struct Place {
    uint3 thread, block;
    dim3 threads, blocks;
};
extern const Place* here;

/// Where a thread waits, for messages and to tell one meeting from another.
struct Line {
    const char* file;
    int line;
};

/// __syncthreads.
void meet_block(Line line);

/// What the lanes of a warp do together. `shuffle` gives the bits of lane `source`, `ballot` a bit for each
/// lane whose bits are not 0, `sync` nothing: only it orders what the lanes have written, as in CUDA.
enum class WarpOperation { shuffle, ballot, sync };
struct WarpCall {
    WarpOperation operation;
    unsigned mask;
    std::uint64_t bits;
    int source;
};
std::uint64_t meet_warp(const WarpCall& call, Line line);

/// __threadfence: threads that have called it know what those before them had written at their call.
void fence();

}  // namespace hpcai500::cuda_on_cpu
