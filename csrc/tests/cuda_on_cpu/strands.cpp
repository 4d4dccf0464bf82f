#include "strands.h"

#include <sys/mman.h>

#include <new>

#ifdef HPCAI500_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

namespace hpcai500::cuda_on_cpu {
namespace {

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

}  // namespace hpcai500::cuda_on_cpu
