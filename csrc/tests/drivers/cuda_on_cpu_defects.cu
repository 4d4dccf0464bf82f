// Kernels with one defect each, and sound ones beside them, which show what csrc/tests/cuda_on_cpu and the
// sanitizers find:
//   cuda_on_cpu_defects KERNEL forward|reverse
// Prints what the kernel wrote. tests/core/test_cuda_kernels_on_cpu.py expects each defect to be found.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <vector>

#include "core/cuda_launch.cuh"
#include "cuda_buffer.h"

namespace {

using namespace hpcai500;

constexpr int threads = 64;
constexpr unsigned all_lanes = 0xffffffffu;

template <bool barrier>
__global__ void neighbours(const int* in, int* out) {
    __shared__ int values[threads];
    values[threadIdx.x] = in[threadIdx.x];
    if constexpr (barrier) __syncthreads();
    out[blockIdx.x * threads + threadIdx.x] = values[(threadIdx.x + 1) % threads];
}

// Lanes of a warp wait for each other, which orders what they have written only by __syncwarp.
template <bool sync>
__global__ void warp_neighbours(const int* in, int* out) {
    __shared__ int values[threads];
    values[threadIdx.x] = in[threadIdx.x];
    if constexpr (sync)
        __syncwarp();
    else
        static_cast<void>(__any_sync(all_lanes, in[threadIdx.x] < 0));
    out[blockIdx.x * threads + threadIdx.x] = values[threadIdx.x ^ 1];
}

__global__ void behind_the_end(const int* in, int* out) {
    out[threadIdx.x] = in[threadIdx.x + 1];
}

__global__ void behind_the_shared_end(const int* in, int* out) {
    __shared__ int values[threads];
    values[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = values[threadIdx.x + 1];
}

__global__ void misaligned(const int* in, int* out) {
    if (threadIdx.x == 0) out[0] = reinterpret_cast<const int4*>(in + 1)->x;
}

__global__ void divergent_barrier(const int* in, int* out) {
    if (threadIdx.x < 32) {
        __syncthreads();
    } else {
        out[threadIdx.x] = in[threadIdx.x];
        __syncthreads();
    }
}

__global__ void absent_lanes(const int* in, int* out) {
    if (threadIdx.x % 32 < 16)
        out[threadIdx.x] = __shfl_down_sync(all_lanes, in[threadIdx.x], 1);
    else
        __syncthreads();
}

__global__ void lane_that_ended(const int* in, int* out) {
    if (threadIdx.x % 32 == 31) return;
    out[threadIdx.x] = __shfl_sync(all_lanes, in[threadIdx.x], 31);
}

__global__ void same_place(const int* in, int* out) {
    if (threadIdx.x == 0) out[0] = in[blockIdx.x];
}

// The block that comes last adds what all have written.
template <bool fence>
__global__ void last_block(const int* in, int* out) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
        out[2 + blockIdx.x] = in[blockIdx.x];
        if constexpr (fence) __threadfence();
        last = atomicAdd(out + 1, 1) == static_cast<int>(gridDim.x) - 1;
    }
    __syncthreads();
    if (!last) return;
    if constexpr (fence) __threadfence();
    int sum = threadIdx.x < gridDim.x ? __ldcg(out + 2 + threadIdx.x) : 0;
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(all_lanes, sum, distance);
    if (threadIdx.x == 0) out[0] = sum;
}

struct Case {
    const char* name;
    unsigned blocks;
    void (*kernel)(const int*, int*);
};

constexpr Case cases[] = {{"sound_barrier", 3, neighbours<true>},
                          {"missing_barrier", 3, neighbours<false>},
                          {"sound_syncwarp", 3, warp_neighbours<true>},
                          {"missing_syncwarp", 3, warp_neighbours<false>},
                          {"behind_the_end", 1, behind_the_end},
                          {"behind_the_shared_end", 1, behind_the_shared_end},
                          {"misaligned", 1, misaligned},
                          {"divergent_barrier", 1, divergent_barrier},
                          {"absent_lanes", 1, absent_lanes},
                          {"lane_that_ended", 1, lane_that_ended},
                          {"same_place", 3, same_place},
                          {"sound_last_block", 5, last_block<true>},
                          {"missing_fence", 5, last_block<false>}};

void run(const Case& chosen) {
    std::vector<int> values;
    for (int i = 0; i < threads; ++i) values.push_back(i * i);
    const drivers::DeviceBuffer<int> in(values), out(std::vector<int>(chosen.blocks * threads, 0));
    start({chosen.name, chosen.blocks, threads, nullptr}, chosen.kernel, in.data(), out.data());
    for (const int value : out.read()) std::printf("%d ", value);
    std::printf("\n");
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 3) return EXIT_FAILURE;
    cuda_on_cpu::set_order(std::strcmp(arguments[2], "reverse") == 0 ? cuda_on_cpu::Order::reverse
                                                                     : cuda_on_cpu::Order::forward);
    try {
        for (const Case& chosen : cases) {
            if (std::strcmp(chosen.name, arguments[1]) != 0) continue;
            run(chosen);
            return EXIT_SUCCESS;
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "cuda_on_cpu_defects: %s\n", error.what());
        return EXIT_FAILURE;
    }
    std::fprintf(stderr, "cuda_on_cpu_defects: no kernel %s\n", arguments[1]);
    return EXIT_FAILURE;
}
