// NMS on the device: the twin of nms.cpp, for segments of boxes that are sorted already.
//
// A segment's rows are handled in panels, in each round one of every segment. One kernel writes, for each row
// of a panel, a bit for each later box of the segment that the row's box would suppress; another, with a
// block of threads for each segment, goes through the panel's rows in order and decides. The host never
// waits, and the memory is bounded by the panels, not by the square of the boxes.
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "core/cuda_launch.cuh"
#include "nms.h"
#include "nms_segments.cuh"

namespace hpcai500 {
namespace {

constexpr int scan_threads = 1024;
constexpr int scan_slots = scan_threads / word_bits;

template <class Real>
struct Box {
    Real x1, y1, x2, y2;
};

template <class Real>
__device__ bool overlaps(const Box<Real>& a, const Box<Real>& b, Real threshold) {
    const Real left = a.x1 > b.x1 ? a.x1 : b.x1, top = a.y1 > b.y1 ? a.y1 : b.y1;
    const Real right = a.x2 < b.x2 ? a.x2 : b.x2, bottom = a.y2 < b.y2 ? a.y2 : b.y2;
    const Real w = right - left, h = bottom - top;
    const Real overlap = (w > 0 ? w : 0) * (h > 0 ? h : 0);
    const Real area_a = (a.x2 - a.x1) * (a.y2 - a.y1), area_b = (b.x2 - b.x1) * (b.y2 - b.y1);
    return overlap / (area_a + area_b - overlap) > threshold;
}

// A block of threads has a tile: the rows of a word of the panel against the columns of a word.
template <class Real>
__global__ void __launch_bounds__(word_bits)
    mark_overlaps(const __grid_constant__ SegmentTable table, const Box<Real>* boxes,
                  const std::int64_t* groups, Real threshold, Word* workspace) {
    __shared__ Box<Real> columns[word_bits];
    __shared__ std::int64_t column_groups[word_bits];
    const int segment = segment_of(table, blockIdx.x), thread = static_cast<int>(threadIdx.x);
    const Panel panel = panel_of(table, segment, workspace);
    const std::uint32_t tile = blockIdx.x - table.tile[segment];
    const auto width = static_cast<std::uint32_t>(panel.words - panel.first_word);
    const std::int64_t row_word = tile / width, column_word = tile % width;
    // The first round says of no box yet that it is gone.
    if (panel.first_word == 0 && row_word == 0 && thread == 0) panel.gone[column_word] = 0;
    if (column_word < row_word) return;
    const std::int64_t column_begin = (panel.first_word + column_word) * word_bits;
    const std::int64_t row = (panel.first_word + row_word) * word_bits + thread;
    const int present =
        static_cast<int>(min(panel.count - column_begin, static_cast<std::int64_t>(word_bits)));
    if (thread < present) {
        columns[thread] = boxes[panel.box + column_begin + thread];
        column_groups[thread] = groups != nullptr ? groups[panel.box + column_begin + thread] : 0;
    }
    __syncthreads();
    if (row >= panel.count) return;
    const Box<Real> box = boxes[panel.box + row];
    const std::int64_t group = groups != nullptr ? groups[panel.box + row] : 0;
    Word word = 0;
    // A box marks only later ones: in its own word, those behind it.
    for (int j = column_word == row_word ? thread + 1 : 0; j < present; ++j)
        if (column_groups[j] == group && overlaps(box, columns[j], threshold)) word |= Word{1} << j;
    panel.marks[(row_word * word_bits + thread) * panel.words + panel.first_word + column_word] = word;
}

// Which boxes of a word stay, in order: `own` are the boxes of the word that each of them would suppress.
__device__ Word kept_of(Word candidates, const Word* own) {
    Word stays = 0;
    while (candidates != 0) {
        const int row = __ffsll(static_cast<long long>(candidates)) - 1;
        stays |= Word{1} << row;
        candidates &= ~own[row] & ~(Word{1} << row);
    }
    return stays;
}

// A block of threads for each segment: decides the rows of its panel in order. gone[w] are the boxes of word
// w that are suppressed. A word that was decided changes the later ones: a thread looks at every
// scan_slots-th of its rows for one later word, so that its reads do not wait for each other.
__global__ void __launch_bounds__(scan_threads)
    decide(const __grid_constant__ SegmentTable table, Word* workspace, std::uint8_t* keep) {
    __shared__ Word own[word_bits];
    __shared__ Word kept;
    const Panel panel = panel_of(table, static_cast<int>(blockIdx.x), workspace);
    const std::int64_t end = min(panel.words, panel.first_word + panel_words);
    const int lane = static_cast<int>(threadIdx.x) % word_bits,
              slot = static_cast<int>(threadIdx.x) / word_bits;
    for (std::int64_t column = panel.first_word; column < end; ++column) {
        const Word* rows = panel.marks + (column - panel.first_word) * word_bits * panel.words;
        const int present =
            static_cast<int>(min(panel.count - column * word_bits, static_cast<std::int64_t>(word_bits)));
        if (slot == 0 && lane < present) own[lane] = rows[lane * panel.words + column];
        __syncthreads();
        if (threadIdx.x == 0) {
            const Word all = ~Word{0} >> (word_bits - present);
            kept = kept_of(all & ~__ldcg(panel.gone + column), own);
        }
        __syncthreads();
        if (slot == 0 && lane < present)
            keep[panel.box + column * word_bits + lane] = static_cast<std::uint8_t>(kept >> lane & 1);
        for (std::int64_t later = column + 1 + lane; later < panel.words; later += word_bits) {
            Word suppressed = 0;
#pragma unroll
            for (int row = slot; row < word_bits; row += scan_slots)
                if ((kept >> row & 1) != 0) suppressed |= rows[row * panel.words + later];
            if (suppressed != 0) atomicOr(panel.gone + later, suppressed);
        }
        __syncthreads();
    }
}

void validate_segments(std::span<const std::int64_t> segments, double threshold) {
    std::int64_t boxes = 0;
    for (const std::int64_t count : segments) {
        if (count < 0)
            throw std::invalid_argument("a segment has at least 0 boxes, got " + std::to_string(count));
        validate_nms(count, threshold);
        boxes += count;
        validate_nms(boxes, threshold);
    }
}

// One round after the other, until the largest segment has no further panel.
template <class Real>
void run_launch(const NmsCudaCall<Real>& call, std::span<const std::int64_t> segments,
                std::int64_t first_box) {
    const auto* boxes = reinterpret_cast<const Box<Real>*>(call.boxes);
    auto* const workspace = static_cast<Word*>(call.workspace);
    const Real threshold = threshold_in<Real>(call.threshold);
    for (int round = 0;; ++round) {
        const SegmentTable table = table_of(segments, first_box, round);
        const std::uint32_t tiles = table.tile[table.segments];
        if (tiles == 0) return;
        start({"nms: starting mark_overlaps", tiles, word_bits, call.stream}, mark_overlaps<Real>, table,
              boxes, call.groups, threshold, workspace);
        start({"nms: starting decide", static_cast<unsigned>(table.segments), scan_threads, call.stream},
              decide, table, workspace, call.keep);
    }
}

}  // namespace

std::size_t nms_cuda_workspace(std::span<const std::int64_t> segments) {
    validate_segments(segments, 0);
    std::int64_t most = 0;
    each_launch(segments, [&](std::span<const std::int64_t> launch, std::int64_t) {
        std::int64_t words = 0;
        for (const std::int64_t count : launch) words += memory_of(count);
        most = std::max(most, words);
    });
    return static_cast<std::size_t>(most) * sizeof(Word);
}

template <class Real>
void nms_cuda(const NmsCudaCall<Real>& call) {
    validate_segments(call.segments, call.threshold);
    const CurrentDevice current(call.device);
    each_launch(call.segments, [&](std::span<const std::int64_t> launch, std::int64_t first_box) {
        run_launch(call, launch, first_box);
    });
}

template void nms_cuda<float>(const NmsCudaCall<float>&);
template void nms_cuda<double>(const NmsCudaCall<double>&);

}  // namespace hpcai500
