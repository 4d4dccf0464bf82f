#include "jpeg_samples.h"

#include <algorithm>
#include <cstdlib>

namespace hpcai500 {
namespace {

// Where the sum of a block's coefficients is below, no sum of either pass leaves 16 bits in vector code, and
// none of libjpeg's plain C leaves its table of clamped levels: a sample is a quarter of that sum at most.
constexpr int most_tame = 2047;

bool ends_scan(std::uint8_t first, std::uint8_t second) {
    const bool restart = second >= JPEG_RST0 && second < JPEG_RST0 + 8;
    return first == 0xFF && second != 0 && !restart;
}

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

RawJpeg::RawJpeg() {
    decompressor_.err = install(errors_);
    create();
}

void RawJpeg::create() {
    guarded(errors_, [this] { jpeg_create_decompress(&decompressor_); });
}

RawJpeg::~RawJpeg() {
    jpeg_destroy_decompress(&decompressor_);
}

std::optional<baseline::Scan> RawJpeg::open(std::span<const std::uint8_t> data) {
    // libjpeg would keep the tables of the image before.
    jpeg_destroy_decompress(&decompressor_);
    create();
    if (data.empty()) throw DecodeError(FailureKind::truncated, "the file is empty");
    errors_.past_end = errors_.end_may_be_missing = false;
    install_memory_source(decompressor_, source_, data.data(), data.size());
    guarded(errors_, [this] { jpeg_read_header(&decompressor_, TRUE); });
    // What matters from here on is the scan.
    errors_.manager.num_warnings = 0;
    return baseline_scan(decompressor_);
}

int RawJpeg::decode(std::vector<RawPlane>& planes) {
    jpeg_decompress_struct& d = decompressor_;
    d.raw_data_out = TRUE;
    d.dct_method = JDCT_ISLOW;
    errors_.end_may_be_missing = true;
    planes.resize(static_cast<std::size_t>(d.num_components));
    int clean = 0;
    try {
        guarded(errors_, [&d] { jpeg_start_decompress(&d); });
        const int rows = static_cast<int>(d.total_iMCU_rows);
        for (int c = 0; c < d.num_components; ++c) {
            const jpeg_component_info& component = d.comp_info[c];
            RawPlane& plane = planes[static_cast<std::size_t>(c)];
            plane.width = static_cast<int>(component.width_in_blocks) * DCTSIZE;
            plane.height = static_cast<int>(component.height_in_blocks) * DCTSIZE;
            plane.stride = static_cast<std::ptrdiff_t>(d.MCUs_per_row) * component.MCU_width * DCTSIZE;
            plane.samples.resize(
                static_cast<std::size_t>(plane.stride * rows * component.v_samp_factor * DCTSIZE));
        }
        decode_rows(planes, rows, clean);
    } catch (const DecodeError&) {
        // Every row before it is whole.
    }
    return clean;
}

void RawJpeg::decode_rows(std::vector<RawPlane>& planes, int rows, int& clean) {
    jpeg_decompress_struct& d = decompressor_;
    JSAMPROW lines[3][4 * DCTSIZE];
    JSAMPARRAY arrays[3] = {lines[0], lines[1], lines[2]};
    while (clean < rows) {
        for (std::size_t c = 0; c < planes.size(); ++c) {
            const int height = d.comp_info[c].v_samp_factor * DCTSIZE;
            for (int i = 0; i < height; ++i)
                lines[c][i] = planes[c].samples.data() + (clean * height + i) * planes[c].stride;
        }
        guarded(errors_, [&d, &arrays] {
            jpeg_read_raw_data(&d, arrays, static_cast<JDIMENSION>(d.max_v_samp_factor * DCTSIZE));
        });
        if (errors_.manager.num_warnings > 0) return;
        ++clean;
    }
}

void RawJpeg::read_coefficients(std::span<const std::uint8_t> data) {
    open(data);
    std::size_t end = data.size() - source_.bytes_in_buffer;
    while (end < data.size() && !(end + 1 < data.size() && ends_scan(data[end], data[end + 1]))) ++end;
    ended_.assign(data.begin(), data.begin() + static_cast<std::ptrdiff_t>(end));
    // libjpeg fills what is missing before an end that is there, and reads all that comes before it.
    ended_.insert(ended_.end(), {0xFF, JPEG_EOI});
    open(ended_);
    errors_.end_may_be_missing = true;
    guarded(errors_, [this] { coefficients_ = jpeg_read_coefficients(&decompressor_); });
}

const JCOEF* RawJpeg::block(int plane, int row, int column) {
    const auto common = reinterpret_cast<j_common_ptr>(&decompressor_);
    const JCOEF* found = nullptr;
    guarded(errors_, [&] {
        JBLOCKARRAY rows = decompressor_.mem->access_virt_barray(common, coefficients_[plane],
                                                                 static_cast<JDIMENSION>(row), 1, FALSE);
        found = rows[0][column];
    });
    return found;
}

bool RawJpeg::is_wild(int plane, int row, int column) {
    const JCOEF* coefficients = block(plane, row, column);
    const UINT16* factors = decompressor_.comp_info[plane].quant_table->quantval;
    std::int64_t sum = 0;
    for (int place = 0; place < DCTSIZE2; ++place) sum += std::abs(coefficients[place] * factors[place]);
    return sum > most_tame;
}

bool RawJpeg::has_wild_blocks() {
    for (int plane = 0; plane < decompressor_.num_components; ++plane) {
        const jpeg_component_info& component = decompressor_.comp_info[plane];
        for (int row = 0; row < static_cast<int>(component.height_in_blocks); ++row)
            for (int column = 0; column < static_cast<int>(component.width_in_blocks); ++column)
                if (is_wild(plane, row, column)) return true;
    }
    return false;
}

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
