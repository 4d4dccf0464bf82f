#include "fiber.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

#ifdef HPCAI500_ADDRESS_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef HPCAI500_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

namespace hpcai500::cuda_on_cpu {
namespace {

// The address sanitizer keeps a fiber's variables apart, and must know the stack that comes next.
void begin_switch([[maybe_unused]] void** fake_stack, [[maybe_unused]] const void* stack,
                  [[maybe_unused]] std::size_t bytes) {
#ifdef HPCAI500_ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(fake_stack, stack, bytes);
#endif
}

void end_switch([[maybe_unused]] void* fake_stack, [[maybe_unused]] const void** stack,
                [[maybe_unused]] std::size_t* bytes) {
#ifdef HPCAI500_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(fake_stack, stack, bytes);
#endif
}

// Without synchronisation: that one thread runs after another by the scheduler's choice orders nothing.
void become([[maybe_unused]] void* race_context) {
#ifdef HPCAI500_THREAD_SANITIZER
    __tsan_switch_to_fiber(race_context, __tsan_switch_to_fiber_no_sync);
#endif
}

void* this_race_context() {
#ifdef HPCAI500_THREAD_SANITIZER
    return __tsan_get_current_fiber();
#else
    return nullptr;
#endif
}

// makecontext() hands over ints only.
Fiber* entering = nullptr;

Strand make_strand() {
    void* const stack = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) throw std::bad_alloc();
    Strand strand{static_cast<std::byte*>(stack), nullptr};
#ifdef HPCAI500_THREAD_SANITIZER
    strand.race_context = __tsan_create_fiber(0);
#endif
    return strand;
}

}  // namespace

Strands::~Strands() {
    for (const Strand& strand : idle_) {
        munmap(strand.stack, stack_bytes);
#ifdef HPCAI500_THREAD_SANITIZER
        __tsan_destroy_fiber(strand.race_context);
#endif
    }
}

Strand Strands::take() {
    if (made_ < most || idle_.empty()) {
        ++made_;
        return make_strand();
    }
    const Strand strand = idle_.front();
    idle_.pop_front();
    return strand;
}

void Fiber::create(Strand strand, void (*body)(void*), void* argument) {
    strand_ = strand;
    body_ = body;
    argument_ = argument;
    ended_ = false;
    scheduler_stack_ = nullptr;
    scheduler_stack_bytes_ = 0;
    fake_stack_ = scheduler_race_context_ = nullptr;
    if (getcontext(&own_) != 0) std::abort();
    own_.uc_stack.ss_sp = strand.stack;
    own_.uc_stack.ss_size = stack_bytes;
    own_.uc_link = nullptr;
    makecontext(&own_, &Fiber::enter, 0);
    // The address sanitizer would forget what is poisoned on the whole stack at each switch to it.
    own_.uc_stack.ss_size = 0;
}

void Fiber::enter() {
    Fiber* const self = entering;
    end_switch(nullptr, &self->scheduler_stack_, &self->scheduler_stack_bytes_);
    self->body_(self->argument_);
    self->ended_ = true;
    self->leave(nullptr);
}

void Fiber::resume() {
    void* fake_stack = nullptr;
    entering = this;
    scheduler_race_context_ = this_race_context();
    begin_switch(&fake_stack, strand_.stack, stack_bytes);
    become(strand_.race_context);
    swapcontext(&scheduler_, &own_);
    end_switch(fake_stack, nullptr, nullptr);
}

void Fiber::suspend() {
    leave(&fake_stack_);
    end_switch(fake_stack_, &scheduler_stack_, &scheduler_stack_bytes_);
}

void Fiber::leave(void** fake_stack) {
    begin_switch(fake_stack, scheduler_stack_, scheduler_stack_bytes_);
    become(scheduler_race_context_);
    swapcontext(&own_, &scheduler_);
}

void Fiber::release([[maybe_unused]] void* place) {
#ifdef HPCAI500_THREAD_SANITIZER
    void* const scheduler = this_race_context();
    become(strand_.race_context);
    __tsan_release(place);
    become(scheduler);
#endif
}

void Fiber::acquire([[maybe_unused]] void* place) {
#ifdef HPCAI500_THREAD_SANITIZER
    void* const scheduler = this_race_context();
    become(strand_.race_context);
    __tsan_acquire(place);
    become(scheduler);
#endif
}

void release_scheduler([[maybe_unused]] void* place) {
#ifdef HPCAI500_THREAD_SANITIZER
    __tsan_release(place);
#endif
}

}  // namespace hpcai500::cuda_on_cpu
