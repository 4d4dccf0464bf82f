// How the device's NMS divides segments: into launches of segments, each launch into rounds, and each round
// into blocks of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/cuda_launch.cuh"
#include "nms.h"

namespace hpcai500 {

inline constexpr int word_bits = 64;
/// Words of rows in a panel: 4096 rows of a segment, of which a round handles one panel.
inline constexpr int panel_words = 64;
/// Segments of one launch. Their table is one of the kernel's arguments, of which there are 4 KiB.
inline constexpr int most_segments = 128;
/// Words of memory that a launch takes at most, unless it is for one segment: 256 MiB.
inline constexpr std::int64_t launch_words = std::int64_t{1} << 25;

using Word = unsigned long long;

inline std::int64_t words_of(std::int64_t boxes) {
    return (boxes + word_bits - 1) / word_bits;
}

/// Words of a segment's memory: one a word of its boxes for those that are gone, then the marks of a panel.
inline std::int64_t memory_of(std::int64_t boxes) {
    const std::int64_t words = words_of(boxes);
    return (1 + std::min<std::int64_t>(words, panel_words) * word_bits) * words;
}

/// Tiles of word_bits x word_bits pairs in the panel of a segment that a round handles, 0 if there is none.
inline std::int64_t tiles_of(std::int64_t boxes, std::int64_t round) {
    const std::int64_t left = words_of(boxes) - round * panel_words;
    return left > 0 ? left * std::min<std::int64_t>(left, panel_words) : 0;
}

/// The segments of a launch.
struct SegmentTable {
    std::int64_t box[most_segments + 1];    ///< each segment's first, and the end
    std::int64_t memory[most_segments];     ///< where its memory begins, in words
    std::uint32_t tile[most_segments + 1];  ///< the first of its panel's tiles, and the end
    int segments;
    int round;
};

/// The panel of a segment that this round handles.
struct Panel {
    std::int64_t box, count;  ///< the segment's boxes
    std::int64_t first_word;  ///< the panel's; all words after it are the columns
    std::int64_t words;       ///< the segment's
    Word *gone, *marks;
};

__device__ inline Panel panel_of(const SegmentTable& table, int segment, Word* workspace) {
    const std::int64_t box = table.box[segment], count = table.box[segment + 1] - box;
    const std::int64_t words = (count + word_bits - 1) / word_bits;
    Word* const memory = workspace + table.memory[segment];
    return {box, count, static_cast<std::int64_t>(table.round) * panel_words, words, memory, memory + words};
}

/// The segment that a tile is of: the last one that begins at it or before it. Those without tiles begin
/// where the next one does.
__device__ inline int segment_of(const SegmentTable& table, std::uint32_t tile) {
    int low = 0, high = table.segments;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        (table.tile[middle] <= tile ? low : high) = middle;
    }
    return low;
}

/// Calls launch(segments, first box) with as many segments at a time as a launch takes.
template <class Launch>
void each_launch(std::span<const std::int64_t> segments, const Launch& launch) {
    std::int64_t box = 0;
    while (!segments.empty()) {
        std::size_t taken = 0;
        std::int64_t boxes = 0, memory = 0;
        do {
            boxes += segments[taken];
            memory += memory_of(segments[taken++]);
        } while (taken < segments.size() && taken < most_segments &&
                 memory + memory_of(segments[taken]) <= launch_words);
        launch(segments.first(taken), box);
        box += boxes;
        segments = segments.subspan(taken);
    }
}

/// The table of a round of a launch.
inline SegmentTable table_of(std::span<const std::int64_t> segments, std::int64_t first_box, int round) {
    SegmentTable table{};
    table.segments = static_cast<int>(segments.size());
    table.round = round;
    std::int64_t box = first_box, memory = 0, tile = 0;
    for (std::size_t i = 0; i < segments.size(); ++i) {
        table.memory[i] = memory;
        box += segments[i];
        memory += memory_of(segments[i]);
        tile += tiles_of(segments[i], round);
        table.box[i + 1] = box;
        table.tile[i + 1] = static_cast<std::uint32_t>(tile);
    }
    table.box[0] = first_box;
    return table;
}

}  // namespace hpcai500
