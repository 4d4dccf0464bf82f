// A stack of its own for each thread of a block, all on the OS thread that runs the block. The sanitizers are
// told who runs on which stack; the thread sanitizer takes fibers for threads that nothing orders.
#pragma once

#include <ucontext.h>

#include <cstddef>

#include "strands.h"

namespace hpcai500::cuda_on_cpu {

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
