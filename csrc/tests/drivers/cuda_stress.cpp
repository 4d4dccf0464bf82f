// Our CUDA kernels against their CPU twins:
//   cuda_stress FAMILY ROUNDS
// Built by nvcc it runs on a GPU, to be watched by compute-sanitizer; built as C++ (cuda_on_cpu_stress) on
// the stand-in of csrc/tests/cuda_on_cpu, in three orders of blocks and threads, to be watched by the
// compiler's sanitizers. Prints what it has done; ends with failure where a result differs.
#include "cuda_stress.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/gradients/compression_cuda.h"
#include "cuda_buffer.h"

#ifdef HPCAI500_CUDA_ON_CPU
#include "tests/cuda_on_cpu/grid.h"
#endif

namespace {

using namespace hpcai500;

void norms_on(int device, const drivers::DeviceBuffer<float>& tensor,
              const drivers::DeviceBuffer<double>& norms) {
    const std::span<const float> only[] = {{tensor.data(), tensor.size()}};
    const drivers::DeviceBuffer<std::uint8_t> workspace(
        compression_cuda_workspace(1, static_cast<std::int64_t>(tensor.size())));
    layer_norms_cuda(only, norms.data(), {workspace.data(), device, nullptr});
}

// What a refused call leaves behind: nothing. CUDA keeps the last error for whoever asks next.
void stress_calls(int rounds) {
    constexpr int no_such_device = 9999;
    const drivers::DeviceBuffer<float> tensor(std::vector<float>(9, 2.0f));
    for (int round = 0; round < rounds; ++round) {
        const drivers::DeviceBuffer<double> norms(1);
        std::string refused;
        try {
            norms_on(no_such_device, tensor, norms);
        } catch (const std::runtime_error& error) {
            refused = error.what();
        }
        if (refused.find("cudaSetDevice") == std::string::npos)
            throw std::runtime_error("calls: a device that does not exist was not refused: " + refused);
        norms_on(0, tensor, norms);
        if (norms.read()[0] != 6.0) throw std::runtime_error("calls: a good call after a refused one failed");
    }
}

struct Family {
    const char* name;
    void (*stress)(int rounds);
};

constexpr Family families[] = {
    {"calls", stress_calls},
    {"compression", drivers::stress_compression},
    {"detection", drivers::stress_detection},
    {"images", drivers::stress_images},
    {"norms", drivers::stress_norms},
};

#ifdef HPCAI500_CUDA_ON_CPU
using cuda_on_cpu::Order;
// The thread sanitizer sees a race in any order, and takes its time.
#ifdef HPCAI500_THREAD_SANITIZER
constexpr Order orders[] = {Order::random};
#else
constexpr Order orders[] = {Order::forward, Order::reverse, Order::random};
#endif
#endif

void run(const Family& family, int rounds) {
#ifdef HPCAI500_CUDA_ON_CPU
    for (const Order order : orders) {
        cuda_on_cpu::set_order(order, 500);
        family.stress(rounds);
    }
#else
    family.stress(rounds);
#endif
    std::printf("%s: %d rounds\n", family.name, rounds);
}

}  // namespace

int main(int count, char** arguments) {
    try {
        for (const Family& family : families) {
            if (count != 3 || std::strcmp(family.name, arguments[1]) != 0) continue;
            run(family, std::stoi(arguments[2]));
            return EXIT_SUCCESS;
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "cuda_stress: %s\n", error.what());
        return EXIT_FAILURE;
    }
    std::fprintf(stderr, "usage: cuda_stress FAMILY ROUNDS, where FAMILY is one of:");
    for (const Family& family : families) std::fprintf(stderr, " %s", family.name);
    std::fprintf(stderr, "\n");
    return EXIT_FAILURE;
}
