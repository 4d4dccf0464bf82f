// What a thread of a kernel runs on: memory for its stack, and what the thread sanitizer knows of it.
#pragma once

#include <cstddef>
#include <deque>

namespace hpcai500::cuda_on_cpu {

/// Stacks of this many bytes: a kernel's arguments may be 32 KiB, and a sanitizer's report is written on one.
inline constexpr std::size_t stack_bytes = 512 * 1024;

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

}  // namespace hpcai500::cuda_on_cpu
