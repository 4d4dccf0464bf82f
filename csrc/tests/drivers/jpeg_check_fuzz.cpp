// A fuzz target: any bytes, judged by check() and by libjpeg-turbo's strict mode (djpeg -strict), which
// refuses whatever libjpeg complains of, up to the end marker. Whole files that it refuses have a warning or
// an error of ours, and no others do, but for what we do not decode and for our limits.
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>
// jpeglib.h uses FILE and size_t without including their headers.
#include <jpeglib.h>

#include "core/jpeg/decode_crop.h"
#include "fuzz_input.h"
#include "jpeg_samples.h"

namespace {

using namespace hpcai500;

// libjpeg-turbo as it is, with its own source of data and nothing of ours. One for each file: it would keep
// the tables of the file before.
class StrictJpeg {
  public:
    StrictJpeg() {
        decompressor_.err = jpeg_std_error(&errors_.manager);
        errors_.manager.error_exit = refuse;
        errors_.manager.emit_message = [](j_common_ptr common, int level) {
            if (level < 0) refuse(common);
        };
        jpeg_create_decompress(&decompressor_);
    }
    ~StrictJpeg() { jpeg_destroy_decompress(&decompressor_); }
    StrictJpeg(const StrictJpeg&) = delete;
    StrictJpeg& operator=(const StrictJpeg&) = delete;

    // Why it refuses the file, or nothing.
    std::string why_not(std::span<const std::uint8_t> data) {
        if (setjmp(errors_.jump) != 0) return errors_.reason;
        read(data);
        return "";
    }

  private:
    struct Errors {
        jpeg_error_mgr manager;
        std::jmp_buf jump;
        char reason[JMSG_LENGTH_MAX];
    };

    [[noreturn]] static void refuse(j_common_ptr common) {
        Errors& errors = *reinterpret_cast<Errors*>(common->err);
        common->err->format_message(common, errors.reason);
        std::longjmp(errors.jump, 1);
    }

    // Owns nothing: libjpeg leaves it by longjmp.
    void read(std::span<const std::uint8_t> data) {
        jpeg_mem_src(&decompressor_, data.data(), static_cast<unsigned long>(data.size()));
        jpeg_read_header(&decompressor_, TRUE);
        jpeg_start_decompress(&decompressor_);
        row_.resize(static_cast<std::size_t>(decompressor_.output_width) *
                    static_cast<std::size_t>(decompressor_.output_components));
        JSAMPROW row = row_.data();
        while (decompressor_.output_scanline < decompressor_.output_height)
            jpeg_read_scanlines(&decompressor_, &row, 1);
        jpeg_finish_decompress(&decompressor_);
    }

    Errors errors_{};
    jpeg_decompress_struct decompressor_{};
    std::vector<std::uint8_t> row_;
};

// What becomes of an input.
enum class Kind { good, warned, refused, limited, large };
Tally<5>& tally() {
    static Tally<5> made({"good for both", "refused and warned of", "refused by both", "beyond our limits",
                          "too large to compare"});
    return made;
}

bool is_limit(const DecodeError& error) {
    return error.kind() == FailureKind::unsupported ||
           std::strcmp(error.what(), "the image has more scans than any real file of its size") == 0;
}

}  // namespace

void hpcai500::run_input(std::span<const std::uint8_t> data) {
    // One decoder for all inputs, as in a loader: a failed image must leave nothing behind.
    static ImageDecoder decoder;
    int warnings = 0;
    try {
        const JpegHeader header = decoder.probe(data);
        if (std::int64_t{header.width} * header.height > most_fuzzed_pixels) return tally().add(Kind::large);
        warnings = decoder.check(data).warnings;
    } catch (const DecodeError& error) {
        if (is_limit(error)) return tally().add(Kind::limited);
        const bool refused = data.empty() || !StrictJpeg().why_not(data).empty();
        claim(refused, "we refuse (%s), libjpeg's strict mode does not", error.what());
        return tally().add(Kind::refused);
    }
    const std::string reason = StrictJpeg().why_not(data);
    claim(warnings > 0 || reason.empty(), "good, but libjpeg's strict mode refuses: %s", reason.c_str());
    claim(warnings == 0 || !reason.empty(), "%d warnings, but libjpeg's strict mode refuses nothing",
          warnings);
    tally().add(warnings > 0 ? Kind::warned : Kind::good);
}
