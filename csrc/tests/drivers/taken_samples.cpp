#include "taken_samples.h"

#include <algorithm>

namespace hpcai500 {
namespace {

// Calls `visit(plane, row, from, until)` for each row of each plane in a group of the window's rows.
template <class Visit>
void for_each_row(const ScanShape& shape, const SampleWindow& window, int from, int until,
                  const Visit& visit) {
    for (int plane = 0; plane < shape.planes; ++plane) {
        const int down = shape.scan_down / shape.down(plane),
                  across = shape.scan_across / shape.across(plane);
        for (int row = from / down; row <= (until - 1) / down; ++row)
            visit(plane, row, window.left / across, divide_up(window.right, across));
    }
}

}  // namespace

Taken take(baseline::Decoder& decoder, const baseline::Scan& scan, int right, int bottom) {
    const ScanShape shape(scan);
    Taken taken;
    taken.planes.resize(static_cast<std::size_t>(shape.planes));
    claim(decoder.open(scan), "tables that were taken are refused");
    const int mcu_rows = divide_up(bottom, shape.mcu_height()), mcus = divide_up(right, shape.mcu_width());
    try {
        decoder.begin({0, right, 0, bottom, shape.mcu_height()});
        for (; taken.rows < mcu_rows; ++taken.rows) {
            for (int plane = 0; plane < shape.planes; ++plane) {
                const int height = shape.down(plane) * 8, width = mcus * shape.across(plane) * 8;
                decoder.require(plane, (taken.rows + 1) * height - 1);
                auto& samples = taken.planes[static_cast<std::size_t>(plane)];
                for (int row = taken.rows * height; row < (taken.rows + 1) * height; ++row) {
                    const std::uint8_t* from = decoder.row(plane, row);
                    samples.insert(samples.end(), from, from + width);
                }
            }
        }
    } catch (const baseline::Surprise&) {
        // libjpeg's from here on.
    }
    return taken;
}

std::optional<TakenWindow> take_window(baseline::Decoder& decoder, const baseline::Scan& scan,
                                       const baseline::SeekPoints& points, const SampleWindow& window) {
    const ScanShape shape(scan);
    if (!decoder.open(scan, points)) return std::nullopt;
    TakenWindow taken;
    try {
        decoder.begin(window);
        for (int from = window.top; from < window.bottom; from += window.held_rows) {
            const int until = std::min(from + window.held_rows, window.bottom);
            for (int plane = 0; plane < shape.planes; ++plane)
                decoder.require(plane, (until - 1) * shape.down(plane) / shape.scan_down);
            for_each_row(shape, window, from, until, [&](int plane, int row, int left, int right) {
                const std::uint8_t* samples = decoder.row(plane, row) - decoder.first_column(plane);
                taken.samples.insert(taken.samples.end(), samples + left, samples + right);
            });
            taken.rows = until - window.top;
        }
    } catch (const baseline::Surprise&) {
        taken.refused = true;
    }
    return taken;
}

std::vector<std::uint8_t> part_of(const Taken& taken, const ScanShape& shape, const SampleWindow& window,
                                  int rows) {
    std::vector<std::uint8_t> part;
    const int mcus = divide_up(window.right, shape.mcu_width());
    for (int from = window.top; from < window.top + rows; from += window.held_rows) {
        const int until = std::min(from + window.held_rows, window.top + rows);
        for_each_row(shape, window, from, until, [&](int plane, int row, int left, int right) {
            const int width = mcus * shape.across(plane) * 8;
            const std::uint8_t* samples = taken.planes[static_cast<std::size_t>(plane)].data() + row * width;
            part.insert(part.end(), samples + left, samples + right);
        });
    }
    return part;
}

SampleWindow choose_window(const ScanShape& shape, Choices& choices) {
    const auto part = [&choices](int size, int& from, int& until) {
        from = choices.below(size);
        until = from + 1 + choices.below(size - from);
    };
    SampleWindow window{};
    part(shape.width, window.left, window.right);
    part(shape.height, window.top, window.bottom);
    window.held_rows = 1 + choices.below(std::min(40, window.bottom - window.top));
    return window;
}

}  // namespace hpcai500
