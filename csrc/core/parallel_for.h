// Independent pieces of work on a few threads of our own: torch's OpenMP runtime is inside its wheel, and
// linking the system's would bring a second one, with threads of its own, into the process.
#pragma once

#include <cstdint>
#include <functional>

namespace hpcai500 {

/// Calls work(index) once for each index in [0, count), on up to `threads` threads of which the caller is
/// one, and returns when all are done. Which thread does which index, and when, is not specified.
///
/// The threads are kept for the next call. While they are at work for another caller (or this call is made
/// from inside `work`, or in a child of fork(), where they do not exist), the caller does all by itself.
/// The first exception that `work` throws is thrown here; indices not begun by then are left out.
void parallel_for(std::int64_t count, int threads, const std::function<void(std::int64_t)>& work);

}  // namespace hpcai500
