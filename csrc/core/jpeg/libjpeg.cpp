#include "libjpeg.h"

#include <jerror.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace hpcai500 {
namespace {

JpegErrors& errors_of(j_common_ptr common) {
    return *reinterpret_cast<JpegErrors*>(common->err);
}

FailureKind kind_of(int message) {
    switch (message) {
        case JERR_NO_SOI:
        case JERR_BAD_PRECISION:
        case JERR_SOF_UNSUPPORTED:
        case JERR_CONVERSION_NOTIMPL:
        case JERR_ARITH_NOTIMPL:
        case JERR_NOT_COMPILED:
        case JERR_NOTIMPL:
        case JERR_CCIR601_NOTIMPL:
        case JERR_FRACT_SAMPLE_NOTIMPL:
            return FailureKind::unsupported;
        case JERR_INPUT_EMPTY:
        case JERR_INPUT_EOF:
            return FailureKind::truncated;
        default:
            return FailureKind::corrupt;
    }
}

[[noreturn]] void error_exit(j_common_ptr common) {
    JpegErrors& errors = errors_of(common);
    char text[JMSG_LENGTH_MAX];
    common->err->format_message(common, text);
    const int message = common->err->msg_code;
    // libjpeg words its memory limit as a missing temporary file.
    if (message == JERR_NO_BACKING_STORE || message == JERR_OUT_OF_MEMORY)
        std::snprintf(text, sizeof text, "decoding needs more memory than one image is allowed");
    errors.kind = kind_of(message);
    std::memcpy(errors.reason, text, sizeof text);
    std::longjmp(errors.jump, 1);
}

// Level -1 is a warning: damage that libjpeg worked around. The others are a trace that nobody reads.
void emit_message(j_common_ptr common, int level) {
    if (level >= 0) return;
    JpegErrors& errors = errors_of(common);
    ++errors.manager.num_warnings;
    // The entropy decoder asks for bits behind the end of the data: from here on it would invent grey pixels.
    if (errors.past_end && errors.manager.msg_code == JWRN_HIT_MARKER)
        fail(common, FailureKind::truncated, "the data ends before the last row that is needed");
}

void output_message(j_common_ptr) {}

void nothing_to_do(j_decompress_ptr) {}

boolean fill_input_buffer(j_decompress_ptr decompressor) {
    static const JOCTET end_marker[] = {0xFF, JPEG_EOI};
    const auto common = reinterpret_cast<j_common_ptr>(decompressor);
    JpegErrors& errors = errors_of(common);
    if (!errors.end_may_be_missing) fail(common, FailureKind::truncated, "the data ends inside the image");
    errors.past_end = true;
    decompressor->src->next_input_byte = end_marker;
    decompressor->src->bytes_in_buffer = sizeof end_marker;
    return TRUE;
}

void skip_input_data(j_decompress_ptr decompressor, long count) {
    if (count <= 0) return;
    jpeg_source_mgr& source = *decompressor->src;
    if (static_cast<std::size_t>(count) > source.bytes_in_buffer)
        fail(reinterpret_cast<j_common_ptr>(decompressor), FailureKind::truncated,
             "the data ends inside a marker");
    source.next_input_byte += count;
    source.bytes_in_buffer -= static_cast<std::size_t>(count);
}

// libjpeg repeats chroma of fewer samples instead of interpolating it.
constexpr int fewest_chroma_samples = 3;

bool is_baseline(const jpeg_decompress_struct& d) {
    const bool whole =
        d.comps_in_scan == d.num_components && d.Ss == 0 && d.Se == 63 && d.Ah == 0 && d.Al == 0;
    return d.data_precision == 8 && d.progressive_mode == 0 && d.arith_code == 0 && whole;
}

bool has_sampling(const jpeg_component_info& component, int across, int down) {
    return component.h_samp_factor == across && component.v_samp_factor == down;
}

bool is_known_colour(const jpeg_decompress_struct& d) {
    const jpeg_component_info* c = d.comp_info;
    if (d.num_components == 1) return d.jpeg_color_space == JCS_GRAYSCALE && has_sampling(c[0], 1, 1);
    if (d.num_components != 3 || d.jpeg_color_space != JCS_YCbCr) return false;
    const bool luma = has_sampling(c[0], 1, 1) || has_sampling(c[0], 2, 1) || has_sampling(c[0], 2, 2);
    if (!luma || !has_sampling(c[1], 1, 1) || !has_sampling(c[2], 1, 1)) return false;
    return c[0].h_samp_factor == 1 ||
           d.image_width > static_cast<JDIMENSION>(2 * (fewest_chroma_samples - 1));
}

// Numbers of tables stand in the file as they are: libjpeg compares them with its four places when it starts
// to decode.
template <class Table>
const Table* table(Table* const (&tables)[NUM_HUFF_TBLS], int number) {
    static_assert(NUM_HUFF_TBLS == NUM_QUANT_TBLS);
    return number >= 0 && number < NUM_HUFF_TBLS ? tables[number] : nullptr;
}

bool copy(const JHUFF_TBL* from, baseline::HuffmanCode& to) {
    if (from == nullptr) return false;
    std::memcpy(to.counts, from->bits + 1, sizeof to.counts);
    std::memcpy(to.symbols, from->huffval, sizeof to.symbols);
    return true;
}

bool copy(const JQUANT_TBL* from, std::int16_t* to) {
    // Larger factors are for 12-bit images.
    constexpr UINT16 largest = 255;
    if (from == nullptr ||
        std::any_of(from->quantval, from->quantval + DCTSIZE2, [](UINT16 q) { return q > largest; }))
        return false;
    std::copy_n(from->quantval, DCTSIZE2, to);
    return true;
}

}  // namespace

jpeg_error_mgr* install(JpegErrors& errors) {
    errors = {};
    jpeg_error_mgr* manager = jpeg_std_error(&errors.manager);
    manager->error_exit = error_exit;
    manager->emit_message = emit_message;
    manager->output_message = output_message;
    return manager;
}

void install_memory_source(jpeg_decompress_struct& decompressor, jpeg_source_mgr& source,
                           const std::uint8_t* data, std::size_t size) {
    source.init_source = nothing_to_do;
    source.fill_input_buffer = fill_input_buffer;
    source.skip_input_data = skip_input_data;
    source.resync_to_restart = jpeg_resync_to_restart;
    source.term_source = nothing_to_do;
    source.next_input_byte = data;
    source.bytes_in_buffer = size;
    decompressor.src = &source;
}

void fail(j_common_ptr common, FailureKind kind, const char* reason) {
    JpegErrors& errors = errors_of(common);
    errors.kind = kind;
    std::snprintf(errors.reason, sizeof errors.reason, "%s", reason);
    std::longjmp(errors.jump, 1);
}

std::optional<baseline::Scan> baseline_scan(const jpeg_decompress_struct& d) {
    if (!is_baseline(d) || !is_known_colour(d)) return std::nullopt;
    baseline::Scan scan;
    scan.width = static_cast<int>(d.image_width);
    scan.height = static_cast<int>(d.image_height);
    scan.component_count = d.num_components;
    scan.across = d.comp_info[0].h_samp_factor;
    scan.down = d.comp_info[0].v_samp_factor;
    scan.restart_interval = static_cast<int>(d.restart_interval);
    scan.data = {d.src->next_input_byte, d.src->bytes_in_buffer};
    for (int i = 0; i < d.num_components; ++i) {
        const jpeg_component_info& component = d.comp_info[i];
        if (d.cur_comp_info[i] != &component) return std::nullopt;
        baseline::ScanComponent& to = scan.components[i];
        const bool complete = copy(table(d.dc_huff_tbl_ptrs, component.dc_tbl_no), to.dc) &&
                              copy(table(d.ac_huff_tbl_ptrs, component.ac_tbl_no), to.ac) &&
                              copy(table(d.quant_tbl_ptrs, component.quant_tbl_no), to.quantisation);
        if (!complete) return std::nullopt;
    }
    return scan;
}

}  // namespace hpcai500
