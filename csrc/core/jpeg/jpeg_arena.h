// Memory for libjpeg that is kept from one image to the next. Internal to jpeg_reader.cpp.
#pragma once

#include <cstddef>
#include <cstdio>
#include <memory>
#include <vector>
// jpeglib.h uses FILE and size_t without including their headers.
#include <jpeglib.h>

#include "core/grow_buffer.h"

namespace hpcai500 {

/// Takes the place of libjpeg's allocator for what lives as long as one image.
///
/// libjpeg allocates its row buffers for every image and frees them afterwards; malloc gives such memory back
/// to the system, and clearing the fresh pages again took a tenth of the time of a 500 x 375 image. So do an
/// image's Huffman and quantisation tables, which libjpeg would keep for the next one: whoever resets this
/// forgets them. Large permanent memory and the coefficients of progressive images stay with libjpeg's own
/// allocator and its limit.
class JpegArena {
  public:
    /// Row buffers of the widest possible image take about 10 MB; more is a mistake.
    static constexpr std::size_t most_bytes = std::size_t{64} << 20;

    JpegArena() = default;
    JpegArena(const JpegArena&) = delete;
    JpegArena& operator=(const JpegArena&) = delete;

    /// To be called once, after jpeg_create_decompress; must outlive the decompressor's last use. Takes over
    /// the decompressor's client_data.
    void install(jpeg_decompress_struct& decompressor);

    /// Memory until the next reset, aligned for vector instructions; leaves through libjpeg's error exit if
    /// there is none.
    void* allocate(j_common_ptr common, std::size_t bytes);
    void reset();

    const jpeg_memory_mgr& original() const { return original_; }

  private:
    static constexpr std::size_t block_bytes = std::size_t{512} << 10;
    struct Block {
        GrowBuffer<unsigned char> memory;
        std::size_t size = 0;
    };

    jpeg_memory_mgr original_{};
    std::vector<std::unique_ptr<Block>> blocks_;
    std::size_t current_ = 0, used_ = 0, total_ = 0;
};

}  // namespace hpcai500
