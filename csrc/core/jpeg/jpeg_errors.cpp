#include "jpeg_errors.h"

#include <jerror.h>

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

}  // namespace hpcai500
