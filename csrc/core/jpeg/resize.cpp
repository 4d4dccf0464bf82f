#include "resize.h"

#include <algorithm>

#include "core/vectors/kernels.h"

namespace hpcai500 {
namespace {

constexpr int bytes_per_pixel = 4;
// Kernels load 16 bytes (4 pixels) at a time: a window that starts on such a block never splits a cache line.
constexpr int load_pixels = 4;
// libjpeg-turbo writes rows that start on 32 bytes around the cache, and we would fetch them from memory at
// once: rows that start on 16 bytes only made the resize twice as fast.
constexpr std::size_t row_offset = 16;

constexpr int round_up(int value, int multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

void set_normalisation(const DecodeSpec& spec, float* scale, float* bias) {
    const bool levels = spec.dtype == DType::uint8;
    for (std::size_t channel = 0; channel < 3; ++channel) {
        const auto factors =
            levels ? Normalisation{1, 0} : normalisation(spec.mean[channel], spec.std[channel], channel);
        scale[channel] = factors.scale;
        bias[channel] = factors.bias;
    }
}

void Resizer::prepare(const Interval& columns, const Interval& rows, int size) {
    // Relative to the limits, as Pillow computes a crop: the same rounding wherever the crop lies in the
    // image.
    column_origin_ = columns.low;
    row_origin_ = rows.low;
    column_taps_.prepare(columns.begin - columns.low, columns.end - columns.low, columns.high - columns.low,
                         size);
    row_taps_.prepare(rows.begin - rows.low, rows.end - rows.low, rows.high - rows.low, size);
}

void Resizer::resize(RowSource& source, int source_left, int row_pixels, const DecodeSpec& spec, bool flip,
                     void* image) {
    const int size = spec.size;
    const ResizeKernel& kernel = kernels().resize;
    const auto resize_rows = kernel.resize_rows[static_cast<int>(spec.dtype)][static_cast<int>(spec.layout)];

    // A ring of source rows: as many as the most demanding group of output rows spans.
    const int capacity = row_taps_.widest_span(group_rows);
    const auto stride =
        static_cast<std::size_t>(round_up(row_pixels, block_pixels) + block_pixels) * bytes_per_pixel;
    std::uint8_t* ring = ring_.reserve(row_offset + stride * static_cast<std::size_t>(capacity)) + row_offset;
    std::uint8_t** slots = slots_.reserve(static_cast<std::size_t>(capacity));
    const std::uint8_t** window = window_.reserve(static_cast<std::size_t>(capacity));

    const int skipped = (left() - source_left) / load_pixels * load_pixels;
    const int shift = column_origin_ - source_left - skipped;
    int* starts = column_starts_.reserve(static_cast<std::size_t>(size));
    int* counts = column_counts_.reserve(static_cast<std::size_t>(size));
    for (int output = 0; output < size; ++output) {
        starts[output] = column_taps_.start(output) + shift;
        counts[output] = column_taps_.count(output);
    }

    RowGroup group{};
    group.source_rows = window;
    group.columns = right() - source_left - skipped;
    group.column_start = starts;
    group.column_count = counts;
    group.column_weights = column_taps_.weights(0);
    group.weight_stride = column_taps_.stride();
    group.flip = flip;
    group.workspace =
        workspace_.reserve(static_cast<std::size_t>(round_up(group.columns, block_pixels)) * column_floats);
    group.image = image;
    group.size = size;
    set_normalisation(spec, group.scale, group.bias);

    const auto slot = [&](int row) { return ring + stride * static_cast<std::size_t>(row % capacity); };
    int next_row = row_taps_.first();
    for (int row = 0; row < size; row += group_rows) {
        group.row = row;
        group.rows = std::min(group_rows, size - row);
        const int first = row_taps_.start(row);
        const int last_output = row + group.rows - 1;
        const int end = row_taps_.start(last_output) + row_taps_.count(last_output);
        if (next_row < end) {
            const int missing = end - next_row;
            for (int i = 0; i < missing; ++i) slots[i] = slot(next_row + i);
            source.read(slots, missing);
            next_row = end;
        }
        for (int i = first; i < end; ++i)
            window[i - first] = slot(i) + static_cast<std::size_t>(skipped) * bytes_per_pixel;
        for (int r = 0; r < group_rows; ++r) {
            // A short last group repeats its last row; the kernel does not store the copies.
            const int output = std::min(row + r, last_output);
            group.first_row[r] = row_taps_.start(output) - first;
            group.row_count[r] = row_taps_.count(output);
            group.row_weights[r] = row_taps_.weights(output);
        }
        resize_rows(group);
    }
    kernel.publish();
}

}  // namespace hpcai500
