#include "planar_resize.h"

#include <algorithm>

#include "core/vectors/kernels.h"

namespace hpcai500 {
namespace {

constexpr int round_up(int value, int multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

// Gives an output `count` taps, those that it does not have without weight, all among [0, limit) once they
// are moved by `shift`. Returns the place of the first.
int pad_taps(const Taps& taps, int output, int shift, int limit, int count, float* weights) {
    const int start = taps.start(output) + shift, moved = std::min(start, limit - count);
    std::fill_n(weights, count, 0.0f);
    std::copy_n(taps.weights(output), taps.count(output), weights + (start - moved));
    return moved;
}

}  // namespace

void PlanarResizer::prepare(const PlaneShape& shape, const Interval& columns, const Interval& rows,
                            int size) {
    column_taps_.prepare(columns.begin - columns.low, columns.end - columns.low, columns.high - columns.low,
                         size);
    row_taps_.prepare(rows.begin - rows.low, rows.end - rows.low, rows.high - rows.low, size);
    columns_[0] = {&column_taps_, columns.low};
    rows_[0] = {&row_taps_, rows.low};
    columns_[1] = columns_[0];
    rows_[1] = rows_[0];
    if (shape.across == 2) {
        chroma_column_taps_.prepare_halved(column_taps_, columns.low, (shape.width + 1) / 2);
        columns_[1] = {&chroma_column_taps_, 0};
    }
    if (shape.down == 2) {
        chroma_row_taps_.prepare_halved(row_taps_, rows.low, (shape.height + 1) / 2);
        rows_[1] = {&chroma_row_taps_, 0};
    }
    columns_[2] = columns_[1];
    rows_[2] = rows_[1];
}

SampleWindow PlanarResizer::window(const PlaneShape& shape, int size) const {
    SampleWindow window{columns_[0].first(), columns_[0].last(), rows_[0].first(), rows_[0].last(), 0};
    const bool colour = shape.planes > 1;
    if (colour) {
        window.left = std::min(window.left, columns_[1].first() * shape.across);
        window.right = std::max(window.right, columns_[1].last() * shape.across);
        window.top = std::min(window.top, rows_[1].first() * shape.down);
        window.bottom = std::max(window.bottom, rows_[1].last() * shape.down);
    }
    for (int row = 0; row < size; row += plane_rows) {
        const int last = std::min(row + plane_rows, size) - 1;
        int from = rows_[0].origin + rows_[0].taps->start(row);
        int until = rows_[0].origin + rows_[0].taps->start(last) + rows_[0].taps->count(last);
        if (colour) {
            from = std::min(from, (rows_[1].origin + rows_[1].taps->start(row)) * shape.down);
            until =
                std::max(until, (rows_[1].origin + rows_[1].taps->start(last) + rows_[1].taps->count(last)) *
                                    shape.down);
        }
        window.held_rows = std::max(window.held_rows, until - from);
    }
    return window;
}

void PlanarResizer::set_columns(PlaneGroup& group, const PlaneSource& source, int planes, int size,
                                bool flip) {
    const int padded = round_up(size, sample_block);
    for (int plane = 0; plane < planes; ++plane) {
        const Axis& axis = columns_[plane];
        PlanePart& part = group.planes[plane];
        const int offset = axis.first() - source.first_column(plane);
        skipped_[plane] = offset / sample_block * sample_block;
        const int shift = axis.origin - source.first_column(plane) - skipped_[plane];
        part.columns = axis.last() - source.first_column(plane) - skipped_[plane];
        part.column_taps = axis.taps->most(0, size);
        int* starts = starts_[plane].reserve(static_cast<std::size_t>(padded));
        float* weights = column_weights_[plane].reserve(static_cast<std::size_t>(padded) *
                                                        static_cast<std::size_t>(part.column_taps));
        part.column_start = starts;
        part.column_weights = weights;
        for (int column = 0; column < padded; ++column, weights += part.column_taps) {
            // Columns behind the last one repeat it: computed, never stored.
            const int clipped = std::min(column, size - 1), output = flip ? size - 1 - clipped : clipped;
            starts[column] = pad_taps(*axis.taps, output, shift, part.columns, part.column_taps, weights);
        }
        part.workspace = workspace_[plane].reserve(
            static_cast<std::size_t>(round_up(part.columns, sample_block)) * plane_rows);
    }
}

// The source rows of the group's output rows, which are made where they were not yet.
void PlanarResizer::set_rows(PlaneGroup& group, PlaneSource& source, int planes) {
    const int last_output = group.row + group.rows - 1;
    for (int plane = 0; plane < planes; ++plane) {
        const Axis& axis = rows_[plane];
        source.require(plane,
                       axis.origin + axis.taps->start(last_output) + axis.taps->count(last_output) - 1);
    }
    for (int plane = 0; plane < planes; ++plane) {
        const Axis& axis = rows_[plane];
        PlanePart& part = group.planes[plane];
        const int first = axis.taps->start(group.row);
        const int count = axis.taps->start(last_output) + axis.taps->count(last_output) - first;
        const std::uint8_t** window = window_[plane].reserve(static_cast<std::size_t>(count));
        for (int i = 0; i < count; ++i)
            window[i] = source.row(plane, axis.origin + first + i) + skipped_[plane];
        part.source_rows = window;
        part.row_taps = axis.taps->most(group.row, last_output + 1);
        float* weights = row_weights_[plane].reserve(static_cast<std::size_t>(part.row_taps) * plane_rows);
        part.row_weights = weights;
        for (int r = 0; r < plane_rows; ++r, weights += part.row_taps) {
            // A short last group repeats its last row; the kernel does not store the copies.
            const int output = std::min(group.row + r, last_output);
            part.first_row[r] = pad_taps(*axis.taps, output, -first, count, part.row_taps, weights);
        }
    }
}

void PlanarResizer::resize(PlaneSource& source, const PlaneShape& shape, const Interval& columns,
                           const Interval& rows, const DecodeSpec& spec, bool flip, void* image) {
    prepare(shape, columns, rows, spec.size);
    source.begin(window(shape, spec.size));
    const ResizeKernel& kernel = kernels().resize;
    const auto resize_planes =
        kernel.resize_planes[static_cast<int>(spec.dtype)][static_cast<int>(spec.layout)];
    PlaneGroup group{};
    group.plane_count = shape.planes;
    group.image = image;
    group.size = spec.size;
    set_normalisation(spec, group.scale, group.bias);
    set_columns(group, source, shape.planes, spec.size, flip);
    for (int row = 0; row < spec.size; row += plane_rows) {
        group.row = row;
        group.rows = std::min(plane_rows, spec.size - row);
        set_rows(group, source, shape.planes);
        resize_planes(group);
    }
    kernel.publish();
}

}  // namespace hpcai500
