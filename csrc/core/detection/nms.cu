// NMS on the device: the twin of nms.cpp, for boxes that are sorted already.
//
// Rows are handled in panels. One kernel writes, for each row of a panel, a bit for each later box that the
// row's box would suppress; another, a single block of threads, goes through the panel's rows in order and
// decides. The host never waits, and the memory is bounded by the panel, not by the square of the boxes.
#include <algorithm>
#include <cstdint>

#include "core/cuda_launch.cuh"
#include "nms.h"

namespace hpcai500 {
namespace {

constexpr int word_bits = 64;
constexpr int panel_words = 64;  // words of rows in a panel: 4096 rows
constexpr int scan_threads = 1024;
constexpr int scan_slots = scan_threads / word_bits;

using Word = unsigned long long;

std::int64_t words_of(std::int64_t count) {
    return (count + word_bits - 1) / word_bits;
}

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

// Block (x, y): the rows of word first_word + y of the panel against the columns of word first_word + x.
template <class Real>
__global__ void __launch_bounds__(word_bits)
    mark_overlaps(const Box<Real>* boxes, const std::int64_t* groups, std::int64_t count, Real threshold,
                  std::int64_t first_word, std::int64_t row_words, Word* marks) {
    if (blockIdx.x < blockIdx.y) return;
    __shared__ Box<Real> columns[word_bits];
    __shared__ std::int64_t column_groups[word_bits];
    const std::int64_t column_begin = (first_word + blockIdx.x) * word_bits;
    const std::int64_t row = (first_word + blockIdx.y) * word_bits + threadIdx.x;
    const int present = static_cast<int>(min(count - column_begin, static_cast<std::int64_t>(word_bits)));
    if (threadIdx.x < present) {
        columns[threadIdx.x] = boxes[column_begin + threadIdx.x];
        column_groups[threadIdx.x] = groups != nullptr ? groups[column_begin + threadIdx.x] : 0;
    }
    __syncthreads();
    if (row >= count) return;
    const Box<Real> box = boxes[row];
    const std::int64_t group = groups != nullptr ? groups[row] : 0;
    Word word = 0;
    // A box marks only later ones: in its own word, those behind it.
    for (int j = blockIdx.x == blockIdx.y ? static_cast<int>(threadIdx.x) + 1 : 0; j < present; ++j)
        if (column_groups[j] == group && overlaps(box, columns[j], threshold)) word |= Word{1} << j;
    const std::int64_t panel_row = static_cast<std::int64_t>(blockIdx.y) * word_bits + threadIdx.x;
    marks[panel_row * row_words + first_word + blockIdx.x] = word;
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

// One block of threads: decides the rows of a panel in order. gone[w] are the boxes of word w that are
// suppressed. A word that was decided changes the later ones: a thread looks at every scan_slots-th of its
// rows for one later word, so that its reads do not wait for each other.
__global__ void __launch_bounds__(scan_threads)
    decide(const Word* marks, std::int64_t count, std::int64_t first_word, std::int64_t row_words, int words,
           Word* gone, std::uint8_t* keep) {
    __shared__ Word own[word_bits];
    __shared__ Word kept;
    const int lane = static_cast<int>(threadIdx.x) % word_bits,
              slot = static_cast<int>(threadIdx.x) / word_bits;
    for (int word = 0; word < words; ++word) {
        const std::int64_t column = first_word + word;
        const Word* rows = marks + static_cast<std::int64_t>(word) * word_bits * row_words;
        const int present =
            static_cast<int>(min(count - column * word_bits, static_cast<std::int64_t>(word_bits)));
        if (slot == 0 && lane < present) own[lane] = rows[lane * row_words + column];
        __syncthreads();
        if (threadIdx.x == 0) {
            const Word all = ~Word{0} >> (word_bits - present);
            kept = kept_of(all & ~__ldcg(gone + column), own);
        }
        __syncthreads();
        if (slot == 0 && lane < present)
            keep[column * word_bits + lane] = static_cast<std::uint8_t>(kept >> lane & 1);
        for (std::int64_t later = column + 1 + lane; later < row_words; later += word_bits) {
            Word suppressed = 0;
#pragma unroll
            for (int row = slot; row < word_bits; row += scan_slots)
                if ((kept >> row & 1) != 0) suppressed |= rows[row * row_words + later];
            if (suppressed != 0) atomicOr(gone + later, suppressed);
        }
        __syncthreads();
    }
}

}  // namespace

std::size_t nms_cuda_workspace(std::int64_t count) {
    validate_nms(count, 0);
    const std::int64_t words = words_of(count);
    const std::int64_t rows = std::min<std::int64_t>(words, panel_words) * word_bits;
    return static_cast<std::size_t>((rows + 1) * words) * sizeof(Word);
}

template <class Real>
void nms_cuda(const NmsCudaCall<Real>& call) {
    validate_nms(call.count, call.threshold);
    if (call.count == 0) return;
    const CurrentDevice current(call.device);
    const auto stream = static_cast<cudaStream_t>(call.stream);
    const std::int64_t words = words_of(call.count);
    Word* const gone = static_cast<Word*>(call.workspace);
    Word* const marks = gone + words;
    const auto* boxes = reinterpret_cast<const Box<Real>*>(call.boxes);
    const Real threshold = threshold_in<Real>(call.threshold);
    check_cuda(cudaMemsetAsync(gone, 0, static_cast<std::size_t>(words) * sizeof(Word), stream),
               "nms: clearing");
    for (std::int64_t first = 0; first < words; first += panel_words) {
        const int panel = static_cast<int>(std::min<std::int64_t>(panel_words, words - first));
        const dim3 grid(static_cast<unsigned>(words - first), static_cast<unsigned>(panel));
        start({"nms: starting mark_overlaps", grid, word_bits, stream}, mark_overlaps<Real>, boxes,
              call.groups, call.count, threshold, first, words, marks);
        start({"nms: starting decide", 1, scan_threads, stream}, decide, marks, call.count, first, words,
              panel, gone, call.keep);
    }
}

template void nms_cuda<float>(const NmsCudaCall<float>&);
template void nms_cuda<double>(const NmsCudaCall<double>&);

}  // namespace hpcai500
