#include "grid.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "block.h"

#ifdef HPCAI500_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

namespace hpcai500::cuda_on_cpu {
namespace {

// What all that is ordered by __threadfence is released to.
[[maybe_unused]] char fences;

class Turns {
  public:
    void set(Order order, std::uint64_t seed) {
        order_ = order;
        random_.seed(seed);
    }
    std::vector<std::size_t> next(std::size_t count) {
        std::vector<std::size_t> turns(count);
        std::iota(turns.begin(), turns.end(), std::size_t{0});
        if (order_ == Order::reverse) std::reverse(turns.begin(), turns.end());
        if (order_ == Order::random) std::shuffle(turns.begin(), turns.end(), random_);
        return turns;
    }

  private:
    Order order_ = Order::forward;
    std::mt19937_64 random_;
};

Turns order_of_turns;
std::mutex device;

uint3 block_at(const dim3& blocks, std::size_t index) {
    const std::size_t row = index / blocks.x;
    return {static_cast<unsigned>(index % blocks.x), static_cast<unsigned>(row % blocks.y),
            static_cast<unsigned>(row / blocks.y)};
}

void run_block(const Grid& grid, uint3 index, void* done) {
    Block block(grid, index, done);
    while (!block.ended())
        if (!block.take_turns(order_of_turns.next(grid.threads))) block.report_stuck();
}

// Under the thread sanitizer each block has an OS thread, whose thread-local variables are its shared memory.
void run_block_apart(const Grid& grid, uint3 index, void* done) {
#ifdef HPCAI500_THREAD_SANITIZER
    std::exception_ptr error;
    std::thread([&] {
        try {
            run_block(grid, index, done);
        } catch (...) {
            error = std::current_exception();
        }
    }).join();
    if (error) std::rethrow_exception(error);
#else
    run_block(grid, index, done);
#endif
}

// The host waits for a kernel, and so knows what it has written.
class Waiting {
  public:
    Waiting() = default;
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    ~Waiting() {
#ifdef HPCAI500_THREAD_SANITIZER
        __tsan_acquire(&done_);
#endif
    }
    void* done() { return &done_; }

  private:
    char done_ = 0;
};

// The limits of all devices that we compile for.
void check(const Grid& grid) {
    const bool runs = grid.threads >= 1 && grid.threads <= 1024 && grid.blocks.x >= 1 &&
                      grid.blocks.x <= 0x7fffffffu && grid.blocks.y >= 1 && grid.blocks.y <= 65535 &&
                      grid.blocks.z >= 1 && grid.blocks.z <= 65535;
    if (runs) return;
    throw std::invalid_argument(std::string(grid.what) + ": no device runs " + std::to_string(grid.blocks.x) +
                                " x " + std::to_string(grid.blocks.y) + " x " +
                                std::to_string(grid.blocks.z) + " blocks of " + std::to_string(grid.threads) +
                                " threads");
}

}  // namespace

void set_order(Order order, std::uint64_t seed) {
    order_of_turns.set(order, seed);
}

void run(const Grid& grid) {
    check(grid);
    const std::lock_guard one_kernel_at_a_time(device);
    Waiting host;
    const std::size_t blocks = std::size_t{grid.blocks.x} * grid.blocks.y * grid.blocks.z;
    for (const std::size_t index : order_of_turns.next(blocks))
        run_block_apart(grid, block_at(grid.blocks, index), host.done());
}

void meet_block(Line line) {
    Thread& thread = running();
    thread.line = line;
    thread.waits = Waits::for_block;
    thread.fiber.suspend();
}

std::uint64_t meet_warp(const WarpCall& call, Line line) {
    Thread& thread = running();
    thread.line = line;
    thread.call = call;
    thread.waits = Waits::for_warp;
    thread.fiber.suspend();
    return thread.result;
}

void fence() {
#ifdef HPCAI500_THREAD_SANITIZER
    __tsan_release(&fences);
    __tsan_acquire(&fences);
#endif
}

}  // namespace hpcai500::cuda_on_cpu
