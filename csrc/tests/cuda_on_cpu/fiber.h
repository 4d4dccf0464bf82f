// A stack of its own for each thread of a block, all on the OS thread that runs the block. The sanitizers are
// told who runs on which stack; the thread sanitizer takes fibers for threads that nothing orders.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <deque>

namespace hpcai500::cuda_on_cpu {

/// Stacks of this many bytes: a kernel's arguments may be 32 KiB, and a sanitizer's report is written on one.
inline constexpr std::size_t stack_bytes = 512 * 1024;

/// What a thread runs on.
struct Strand {
    std::byte* stack;
    void* race_context;  ///< nullptr in builds without the thread sanitizer
};

/// Strands are used again, as each costs time and memory. All of them know what the host knows when a launch
/// begins. In a launch of more threads than `most`, a thread also knows what the ones before it on its strand
/// did until they last met others: races between such blocks may go unseen.
class Strands {
  public:
    Strands() = default;
    ~Strands();
    Strands(const Strands&) = delete;
    Strands& operator=(const Strands&) = delete;

    /// The one that has not been used for the longest time.
    Strand take();
    void give_back(Strand strand) { idle_.push_back(strand); }

  private:
    static constexpr std::size_t most = 1024;
    std::size_t made_ = 0;
    std::deque<Strand> idle_;
};

class Fiber {
  public:
    /// Runs `body(argument)` from the first resume() on.
    void create(Strand strand, void (*body)(void*), void* argument);

    /// From the scheduler: returns when the fiber calls suspend(), or has ended.
    void resume();
    /// From the fiber: back to the scheduler.
    void suspend();

    bool ended() const { return ended_; }
    Strand strand() const { return strand_; }

    /// For the thread sanitizer, from the scheduler: what the fiber has done is known to all that later call
    /// acquire() of the same place.
    void release(void* place);
    void acquire(void* place);

  private:
    static void enter();
    void leave(void** fake_stack);

    ucontext_t own_, scheduler_;
    Strand strand_;
    void (*body_)(void*);
    void* argument_;
    bool ended_;
    const void* scheduler_stack_;
    std::size_t scheduler_stack_bytes_;
    void *fake_stack_, *scheduler_race_context_;
};

/// What the scheduler has done is known to all that later call acquire() of the same place.
void release_scheduler(void* place);

}  // namespace hpcai500::cuda_on_cpu
