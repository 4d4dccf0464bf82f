// A fuzz target: any bytes, decoded by our own decoder with every kernel, and by libjpeg-turbo. Samples are
// compared as the inverse transform leaves them, where nothing has been rounded or clamped in another order:
//
//  - All kernels take the same rows and refuse the same one, and their samples are equal, whatever the data.
//  - Of a row that we take, libjpeg has no complaint, and the same samples to the bit. Only a block that
//    no encoder makes, whose sums leave 16 bits, may differ.
//  - A window of the image ends where all of it does up to the window's right edge, and has the same
//    samples: what is passed over is read as what is decoded is.
#include <algorithm>
#include <optional>
#include <vector>

#include "baseline_kernels.h"
#include "fuzz_input.h"
#include "jpeg_samples.h"

namespace {

using namespace hpcai500;

void compare_with_libjpeg(RawJpeg& rival, std::span<const std::uint8_t> data, const ScanShape& shape,
                          const Taken& taken) {
    static std::vector<RawPlane> planes;
    const int clean = rival.decode(planes);
    claim(taken.rows <= clean, "we take %d rows of MCUs, libjpeg complains of row %d", taken.rows, clean);
    bool has_coefficients = false;
    for (int plane = 0; plane < shape.planes; ++plane) {
        const RawPlane& theirs = planes[static_cast<std::size_t>(plane)];
        const auto& ours = taken.planes[static_cast<std::size_t>(plane)];
        const int rows = std::min(theirs.height, taken.rows * shape.down(plane) * 8);
        const auto stride = static_cast<std::size_t>(theirs.stride);
        for (int row = 0; row < rows; ++row) {
            for (int column = 0; column < theirs.width; ++column) {
                const int our =
                    ours[static_cast<std::size_t>(row) * stride + static_cast<std::size_t>(column)];
                const int their = theirs.row(row)[column];
                if (our == their) continue;
                if (!has_coefficients) {
                    rival.read_coefficients(data);
                    has_coefficients = true;
                }
                claim(rival.is_wild(plane, row / 8, column / 8),
                      "plane %d, row %d, column %d: we have %d, libjpeg %d", plane, row, column, our, their);
                column |= 7;
            }
        }
    }
}

// What is above the window counts, and what is left and right of it but for the last row.
void compare_window(baseline::Decoder& decoder, const baseline::Scan& scan, const SampleWindow& window) {
    const ScanShape shape(scan);
    const Taken all = take(decoder, scan, window.right, window.bottom);
    const auto part = take_window(decoder, scan, {}, window);
    claim(part.has_value(), "tables that were taken are refused");
    const int last = std::min(window.top + part->rows + window.held_rows, window.bottom) - 1;
    if (part->refused)
        claim(all.rows <= last / shape.mcu_height(),
              "a window of rows up to %d is refused, all %d rows of MCUs are not", last, all.rows);
    else
        claim(all.rows == divide_up(window.bottom, shape.mcu_height()),
              "a window is taken, only %d rows of MCUs are", all.rows);
    claim(part->samples == part_of(all, shape, window, part->rows),
          "a window has other samples than the image");
}

// What becomes of an input.
enum class Kind { no_header, foreign, none, part, whole };
Tally<5>& tally() {
    static Tally<5> made(
        {"without a header", "left to libjpeg", "without a row", "taken in part", "taken whole"});
    return made;
}

}  // namespace

void hpcai500::run_input(std::span<const std::uint8_t> data) {
    static RawJpeg rival;
    // One decoder for all inputs, as in a loader: a failed image must leave nothing behind.
    static baseline::Decoder decoder;
    std::optional<baseline::Scan> scan;
    try {
        scan = rival.open(data);
    } catch (const DecodeError&) {
        return tally().add(Kind::no_header);
    }
    if (!scan || !decoder.open(*scan) || std::int64_t{scan->width} * scan->height > most_fuzzed_pixels)
        return tally().add(Kind::foreign);
    const ScanShape shape(*scan);
    static const std::vector<const Kernels*> here = kernels_here();
    Taken first;
    for (const Kernels* kernels : here) {
        baseline::use(kernels->baseline);
        Taken taken = take(decoder, *scan, scan->width, scan->height);
        if (kernels == &portable_kernels) {
            first = std::move(taken);
            continue;
        }
        claim(taken.rows == first.rows, "%s takes %d rows of MCUs, portable %d", kernels->isa, taken.rows,
              first.rows);
        claim(taken == first, "%s has other samples than portable", kernels->isa);
    }
    Choices choices(digest(data));
    const int kernels = choices.below(static_cast<int>(here.size()));
    baseline::use(here[static_cast<std::size_t>(kernels)]->baseline);
    compare_window(decoder, *scan, choose_window(shape, choices));
    compare_with_libjpeg(rival, data, shape, first);
    tally().add(first.rows == shape.mcu_rows() ? Kind::whole : first.rows > 0 ? Kind::part : Kind::none);
}
