#include "jpeg_reader.h"

#include <jerror.h>

#include <algorithm>
#include <iterator>

#include "libjpeg.h"
#include "resize_kernel.h"

namespace hpcai500 {
namespace {

// Chroma at the edges of jpeg_crop_scanline's window is wrong (it interpolates as if the image ended there),
// and so it is above the first row after jpeg_skip_scanlines: decode a few pixels more on each side and leave
// them.
constexpr int chroma_margin = 4;

// 16 seconds or so of passes over coefficients: a progressive bomb is many scans times many pixels.
constexpr std::int64_t most_scanned_pixels = std::int64_t{1} << 34;

// What libjpeg may hold for one image: the coefficients of a progressive image of 85 million pixels at 4:4:4.
constexpr long most_libjpeg_bytes = 512L << 20;
// Real progressive files have 10 scans; each one costs a pass over all coefficients.
constexpr int most_scans = 500;

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

// Called between the passes of an image with several scans.
void limit_scans(j_common_ptr common) {
    const auto* decompressor = reinterpret_cast<j_decompress_ptr>(common);
    const std::int64_t pixels = std::int64_t{decompressor->image_width} * decompressor->image_height;
    const int scans = decompressor->input_scan_number;
    if (scans > most_scans || scans * pixels > most_scanned_pixels)
        fail(common, FailureKind::corrupt, "the image has more scans than any real file of its size");
}

// Takes the place of libjpeg's allocator for what lives as long as one image.
//
// libjpeg allocates its row buffers for every image and frees them afterwards; malloc gives such memory back
// to the system, and clearing the fresh pages again took a tenth of the time of a 500 x 375 image. So do an
// image's Huffman and quantisation tables, which libjpeg would keep for the next one: whoever resets this
// forgets them. Large permanent memory and the coefficients of progressive images stay with libjpeg's own
// allocator and its limit.
class JpegArena {
  public:
    JpegArena() = default;
    JpegArena(const JpegArena&) = delete;
    JpegArena& operator=(const JpegArena&) = delete;

    // To be called once, after jpeg_create_decompress; must outlive the decompressor's last use. Takes over
    // the decompressor's client_data.
    void install(jpeg_decompress_struct& decompressor) {
        original_ = *decompressor.mem;
        decompressor.client_data = this;
        decompressor.mem->alloc_small = allocate_small;
        decompressor.mem->alloc_large = allocate_large;
        decompressor.mem->alloc_sarray = allocate_samples;
        decompressor.mem->alloc_barray = allocate_blocks;
        decompressor.mem->free_pool = free_pool;
    }

  private:
    // Row buffers of the widest possible image take about 10 MB; more is a mistake.
    static constexpr std::size_t most_bytes = std::size_t{64} << 20;
    static constexpr std::size_t block_bytes = std::size_t{512} << 10;
    // libjpeg-turbo's vector code writes whole registers: it asks for aligned rows, padded to twice the
    // alignment.
    static constexpr std::size_t alignment = 64;
    struct Block {
        GrowBuffer<unsigned char> memory;
        std::size_t size = 0;
    };

    static JpegArena& of(j_common_ptr common) { return *static_cast<JpegArena*>(common->client_data); }
    static constexpr std::size_t round_up(std::size_t bytes) {
        return (bytes + alignment - 1) / alignment * alignment;
    }

    // What is permanent and small is made when the decompressor is, before this takes over; later, only an
    // image's tables are.
    static void* allocate_small(j_common_ptr common, int, std::size_t bytes) {
        return of(common).allocate(common, bytes);
    }

    static void* allocate_large(j_common_ptr common, int pool, std::size_t bytes) {
        if (pool != JPOOL_IMAGE) return of(common).original_.alloc_large(common, pool, bytes);
        return of(common).allocate(common, bytes);
    }

    static JSAMPARRAY allocate_samples(j_common_ptr common, int pool, JDIMENSION samples, JDIMENSION rows) {
        if (pool != JPOOL_IMAGE) return of(common).original_.alloc_sarray(common, pool, samples, rows);
        return of(common).allocate_rows<JSAMPROW>(common, samples * sizeof(JSAMPLE), rows);
    }

    static JBLOCKARRAY allocate_blocks(j_common_ptr common, int pool, JDIMENSION blocks, JDIMENSION rows) {
        if (pool != JPOOL_IMAGE) return of(common).original_.alloc_barray(common, pool, blocks, rows);
        return of(common).allocate_rows<JBLOCKROW>(common, blocks * sizeof(JBLOCK), rows);
    }

    static void free_pool(j_common_ptr common, int pool) {
        JpegArena& arena = of(common);
        arena.original_.free_pool(common, pool);
        if (pool == JPOOL_IMAGE) arena.current_ = arena.used_ = arena.total_ = 0;
    }

    template <class Row>
    Row* allocate_rows(j_common_ptr common, std::size_t row_bytes, JDIMENSION rows) {
        const std::size_t stride = round_up(row_bytes);
        auto** table = static_cast<Row*>(allocate(common, rows * sizeof(Row)));
        auto* memory = static_cast<unsigned char*>(allocate(common, stride * rows));
        for (JDIMENSION row = 0; row < rows; ++row) table[row] = reinterpret_cast<Row>(memory + stride * row);
        return table;
    }

    // Memory until the image's pool is freed; leaves through libjpeg's error exit if there is none.
    void* allocate(j_common_ptr common, std::size_t bytes) {
        bytes = round_up(bytes);
        total_ += bytes;
        if (bytes > most_bytes || total_ > most_bytes) ERREXIT1(common, JERR_OUT_OF_MEMORY, 0);
        while (current_ < blocks_.size() && used_ + bytes > blocks_[current_]->size) {
            ++current_;
            used_ = 0;
        }
        if (current_ == blocks_.size()) {
            // libjpeg's error exit skips destructors, so an exception must not pass through its frames and
            // nothing here may own memory when it is taken.
            if (!add_block(std::max(bytes, block_bytes))) fail(common, FailureKind::memory, "");
            used_ = 0;
        }
        void* const memory = blocks_[current_]->memory.data() + used_;
        used_ += bytes;
        return memory;
    }

    bool add_block(std::size_t bytes) noexcept {
        try {
            auto block = std::make_unique<Block>();
            block->size = bytes;
            block->memory.reserve(bytes);
            blocks_.push_back(std::move(block));
            return true;
        } catch (const std::bad_alloc&) {
            return false;
        }
    }

    jpeg_memory_mgr original_{};
    std::vector<std::unique_ptr<Block>> blocks_;
    std::size_t current_ = 0, used_ = 0, total_ = 0;
};

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

JpegReader::JpegReader() : state_(std::make_unique<State>()) {
    State& s = *state_;
    s.decompressor.err = install(s.errors);
    guarded(s.errors, [&s] { jpeg_create_decompress(&s.decompressor); });
    s.arena.install(s.decompressor);
    s.progress.progress_monitor = limit_scans;
    s.decompressor.progress = &s.progress;
    s.decompressor.mem->max_memory_to_use = most_libjpeg_bytes;
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

void JpegReader::finish() {
    State& s = *state_;
    const long before = s.errors.manager.num_warnings;
    bool is_whole = true;
    try {
        guarded(s.errors, [&s] { jpeg_finish_decompress(&s.decompressor); });
        is_whole = !s.errors.past_end;
    } catch (const DecodeError&) {
        is_whole = false;
    }
    if (!is_whole && s.errors.manager.num_warnings == before) ++s.errors.manager.num_warnings;
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
