// One block of a kernel: its threads, who waits for what, and who may go on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fiber.h"
#include "grid.h"

namespace hpcai500::cuda_on_cpu {

inline constexpr int warp_lanes = 32;

enum class Waits { no, for_block, for_warp };

struct Thread {
    Fiber fiber;
    Place place;
    const Grid* grid;
    Waits waits;
    Line line;
    WarpCall call;
    std::uint64_t result;
};

class Block {
  public:
    /// What its threads have done is known, at its end, to all that acquire `done`.
    Block(const Grid& grid, uint3 index, void* done);
    ~Block();
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    /// Gives each thread of `turns` that may go on a turn, in this order; false where none could. Throws
    /// std::logic_error for a wait that CUDA leaves undefined.
    bool take_turns(const std::vector<std::size_t>& turns);
    bool ended() const;
    /// Throws std::logic_error that tells who waits for what.
    [[noreturn]] void report_stuck() const;

  private:
    void finish_warp(std::size_t thread);
    void finish_barrier();
    [[noreturn]] void fail(const std::string& reason) const;
    std::string name_of(std::size_t thread) const;

    const Grid& grid_;
    uint3 index_;
    void* done_;
    std::vector<Thread> threads_;
};

/// The thread that has its turn.
Thread& running();

}  // namespace hpcai500::cuda_on_cpu
