#include "memory_streams.h"

#include <algorithm>
#include <vector>

#include "core/threads.h"
#include "core/vectors/kernels.h"

namespace hpcai500 {
namespace {

constexpr std::int64_t line = 64;
constexpr std::int64_t task_lines = 1 << 14;

// Calls work(first line, lines, task) for each part.
template <class Work>
void in_parts(std::size_t bytes, int threads, const Work& work) {
    const std::int64_t lines = static_cast<std::int64_t>(bytes) / line;
    parallel_for((lines + task_lines - 1) / task_lines, threads, [&](std::int64_t task) {
        const std::int64_t first = task * task_lines;
        work(first, std::min(task_lines, lines - first), task);
    });
}

}  // namespace

void stream_copy(const void* from, void* to, std::size_t bytes, int threads) {
    const CompressionKernel& kernel = kernels().compression;
    in_parts(bytes, threads, [&](std::int64_t first, std::int64_t lines, std::int64_t) {
        kernel.copy_lines(static_cast<const std::uint8_t*>(from) + first * line,
                          static_cast<std::uint8_t*>(to) + first * line, lines);
        kernel.publish();
    });
}

std::uint32_t stream_read(const void* from, std::size_t bytes, int threads) {
    const CompressionKernel& kernel = kernels().compression;
    std::vector<std::uint32_t> largest(bytes / line / task_lines + 1);
    in_parts(bytes, threads, [&](std::int64_t first, std::int64_t lines, std::int64_t task) {
        largest[static_cast<std::size_t>(task)] =
            kernel.read_lines(static_cast<const std::uint8_t*>(from) + first * line, lines);
    });
    return *std::max_element(largest.begin(), largest.end());
}

}  // namespace hpcai500
