#include "raw_jpeg.h"

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

}  // namespace hpcai500
