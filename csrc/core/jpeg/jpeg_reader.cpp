#include "jpeg_reader.h"

#include <algorithm>
#include <iterator>

#include "jpeg_arena.h"
#include "jpeg_errors.h"
#include "jpeg_scan.h"
#include "resize_kernel.h"

namespace hpcai500 {
namespace {

// Chroma at the edges of jpeg_crop_scanline's window is wrong (it interpolates as if the image ended there),
// and so it is above the first row after jpeg_skip_scanlines: decode a few pixels more on each side and leave
// them.
constexpr int chroma_margin = 4;

// 16 seconds or so of passes over coefficients: a progressive bomb is many scans times many pixels.
constexpr std::int64_t most_scanned_pixels = std::int64_t{1} << 34;

const char* colour_space_name(J_COLOR_SPACE space) {
    switch (space) {
        case JCS_GRAYSCALE:
            return "grey";
        case JCS_RGB:
            return "RGB";
        case JCS_YCbCr:
            return "YCbCr";
        case JCS_CMYK:
            return "CMYK";
        case JCS_YCCK:
            return "YCCK";
        default:
            return "unknown";
    }
}

// Pillow's arithmetic, to the bit: values are stored inverted (Adobe's convention, which every writer
// follows), and a product of two levels is divided by 255 with rounding.
std::uint8_t apply_black(std::uint8_t ink_inverted, std::uint8_t black_inverted) {
    const int ink = 255 - ink_inverted, light = black_inverted;
    const int product = ink * light + 128;
    return static_cast<std::uint8_t>(light - ((product + (product >> 8)) >> 8));
}

void cmyk_row_to_rgbx(std::uint8_t* row, int pixels) {
    for (int i = 0; i < pixels; ++i, row += 4) {
        const std::uint8_t black = row[3];
        for (int channel = 0; channel < 3; ++channel) row[channel] = apply_black(row[channel], black);
        row[3] = 255;
    }
}

}  // namespace

struct JpegReader::State {
    JpegErrors errors;
    jpeg_decompress_struct decompressor;
    jpeg_source_mgr source;
    jpeg_progress_mgr progress;
    JpegArena arena;
    GrowBuffer<std::uint8_t> discarded_row;
    bool inks;  ///< libjpeg delivers CMYK, to be converted here
};

namespace {

// Called between the passes of an image with several scans.
void limit_scans(j_common_ptr common) {
    const auto* decompressor = reinterpret_cast<j_decompress_ptr>(common);
    const std::int64_t pixels = std::int64_t{decompressor->image_width} * decompressor->image_height;
    const int scans = decompressor->input_scan_number;
    if (scans > JpegReader::most_scans || scans * pixels > most_scanned_pixels)
        fail(common, FailureKind::corrupt, "the image has more scans than any real file of its size");
}

}  // namespace

JpegReader::JpegReader() : state_(std::make_unique<State>()) {
    State& s = *state_;
    s.decompressor.err = install(s.errors);
    guarded(s.errors, [&s] { jpeg_create_decompress(&s.decompressor); });
    s.arena.install(s.decompressor);
    s.progress.progress_monitor = limit_scans;
    s.decompressor.progress = &s.progress;
    s.decompressor.mem->max_memory_to_use = most_bytes;
}

JpegReader::~JpegReader() {
    jpeg_destroy_decompress(&state_->decompressor);
}

void JpegReader::open(std::span<const std::uint8_t> data) {
    State& s = *state_;
    close();
    if (data.empty()) throw DecodeError(FailureKind::truncated, "the file is empty");
    s.errors.past_end = s.errors.end_may_be_missing = false;
    install_memory_source(s.decompressor, s.source, data.data(), data.size());
    guarded(s.errors, [&s] { jpeg_read_header(&s.decompressor, TRUE); });
    const jpeg_decompress_struct& d = s.decompressor;
    if (std::int64_t{d.image_width} * d.image_height > most_pixels)
        throw DecodeError(FailureKind::corrupt, "the header claims " + std::to_string(d.image_width) + " x " +
                                                    std::to_string(d.image_height) +
                                                    " pixels; the limit is " + std::to_string(most_pixels));
}

int JpegReader::width() const {
    return static_cast<int>(state_->decompressor.image_width);
}
int JpegReader::height() const {
    return static_cast<int>(state_->decompressor.image_height);
}

JpegHeader JpegReader::header() const {
    const jpeg_decompress_struct& d = state_->decompressor;
    JpegHeader header{
        width(), height(), d.num_components, colour_space_name(d.jpeg_color_space), d.progressive_mode != 0,
        ""};
    for (int i = 0; i < d.num_components; ++i) {
        const jpeg_component_info& component = d.comp_info[i];
        if (i > 0) header.sampling += ',';
        header.sampling +=
            std::to_string(component.h_samp_factor) + 'x' + std::to_string(component.v_samp_factor);
    }
    return header;
}

std::optional<baseline::Scan> JpegReader::baseline_scan() const {
    return hpcai500::baseline_scan(state_->decompressor);
}

JpegReader::Size JpegReader::scaled_size(int eighths) const {
    return {(width() * eighths + 7) / 8, (height() * eighths + 7) / 8};
}

void JpegReader::begin(const PixelWindow& window, int eighths) {
    State& s = *state_;
    jpeg_decompress_struct& d = s.decompressor;
    if (d.num_components != 1 && d.num_components != 3 && d.num_components != 4)
        throw DecodeError(FailureKind::unsupported, "the image has " + std::to_string(d.num_components) +
                                                        " components; 1, 3 and 4 are known");
    s.inks = d.num_components == 4;
    d.out_color_space = s.inks ? JCS_CMYK : JCS_EXT_RGBX;
    d.dct_method = JDCT_ISLOW;
    d.do_fancy_upsampling = TRUE;
    d.scale_num = static_cast<unsigned>(eighths);
    d.scale_denom = 8;
    // A Huffman decoder warns when it has used up the data; an arithmetic one reads zeros without a word, and
    // of an image in several scans nobody can tell whether the last one came.
    s.errors.end_may_be_missing = d.arith_code == 0 && jpeg_has_multiple_scans(&d) == 0;

    guarded(s.errors, [&d] { jpeg_start_decompress(&d); });

    const int columns = static_cast<int>(d.output_width);
    const int from = std::max(0, window.left - chroma_margin);
    const int until = std::min(columns, window.right + chroma_margin);
    JDIMENSION offset = static_cast<JDIMENSION>(from), width = static_cast<JDIMENSION>(until - from);
    const int skipped = std::max(0, window.top - chroma_margin);
    std::uint8_t* discarded = s.discarded_row.reserve((d.output_width + block_pixels) * 4);
    guarded(s.errors, [&] {
        // Cutting nothing is not free: libjpeg rebuilds its upsampler for the new width.
        if (from > 0 || until < columns) jpeg_crop_scanline(&d, &offset, &width);
        if (skipped > 0) jpeg_skip_scanlines(&d, static_cast<JDIMENSION>(skipped));
        while (d.output_scanline < static_cast<JDIMENSION>(window.top))
            jpeg_read_scanlines(&d, &discarded, 1);
    });
    left_ = static_cast<int>(offset);
    row_pixels_ = static_cast<int>(d.output_width);
}

void JpegReader::read(std::uint8_t* const* rows, int count) {
    State& s = *state_;
    guarded(s.errors, [&] {
        for (int done = 0; done < count;) {
            // libjpeg declares the row pointers mutable but does not change them.
            const JDIMENSION got = jpeg_read_scanlines(&s.decompressor, const_cast<JSAMPARRAY>(rows + done),
                                                       static_cast<JDIMENSION>(count - done));
            if (got == 0)
                fail(reinterpret_cast<j_common_ptr>(&s.decompressor), FailureKind::corrupt,
                     "the image has fewer rows than its header says");
            done += static_cast<int>(got);
        }
    });
    if (s.inks)
        for (int i = 0; i < count; ++i) cmyk_row_to_rgbx(rows[i], row_pixels_);
}

int JpegReader::warnings() const {
    return static_cast<int>(state_->errors.manager.num_warnings);
}

// jpeg_abort only frees the image's memory; it has nothing that could fail. The tables go with it: a file
// that has none must not be decoded with those of the file before, whichever that was.
void JpegReader::close() noexcept {
    jpeg_decompress_struct& d = state_->decompressor;
    jpeg_abort_decompress(&d);
    std::fill(std::begin(d.quant_tbl_ptrs), std::end(d.quant_tbl_ptrs), nullptr);
    std::fill(std::begin(d.dc_huff_tbl_ptrs), std::end(d.dc_huff_tbl_ptrs), nullptr);
    std::fill(std::begin(d.ac_huff_tbl_ptrs), std::end(d.ac_huff_tbl_ptrs), nullptr);
}

}  // namespace hpcai500
