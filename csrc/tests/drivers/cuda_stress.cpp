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
#include <string>

#ifdef HPCAI500_CUDA_ON_CPU
#include "tests/cuda_on_cpu/grid.h"
#endif

namespace {

using namespace hpcai500;

struct Family {
    const char* name;
    void (*stress)(int rounds);
};

constexpr Family families[] = {
    {"calls", drivers::stress_calls},
    {"compression", drivers::stress_compression},
    {"detection", drivers::stress_detection},
    {"images", drivers::stress_images},
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
