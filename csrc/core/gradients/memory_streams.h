// What this machine's memory does, for kernels that it bounds to be judged by.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hpcai500 {

/// Copies `bytes`, a multiple of 64, past the cache, on up to `threads` threads. Both are 64-byte aligned.
void stream_copy(const void* from, void* to, std::size_t bytes, int threads);

/// Reads `bytes`, a multiple of 64, and does next to nothing with them: returns the largest of all 32-bit
/// words without their highest bit. 4-byte aligned.
std::uint32_t stream_read(const void* from, std::size_t bytes, int threads);

}  // namespace hpcai500
