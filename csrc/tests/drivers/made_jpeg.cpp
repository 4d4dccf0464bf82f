#include "made_jpeg.h"

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <random>
// jpeglib.h uses FILE and size_t without including their headers.
#include <jpeglib.h>

namespace hpcai500 {

std::vector<std::uint8_t> make_jpeg(int width, int height) {
    jpeg_compress_struct compressor;
    jpeg_error_mgr errors;
    compressor.err = jpeg_std_error(&errors);
    jpeg_create_compress(&compressor);
    unsigned char* made = nullptr;
    unsigned long bytes = 0;
    jpeg_mem_dest(&compressor, &made, &bytes);
    compressor.image_width = static_cast<JDIMENSION>(width);
    compressor.image_height = static_cast<JDIMENSION>(height);
    compressor.input_components = 3;
    compressor.in_color_space = JCS_RGB;
    jpeg_set_defaults(&compressor);
    jpeg_set_quality(&compressor, 90, TRUE);
    jpeg_start_compress(&compressor, TRUE);
    std::mt19937 random(500);
    std::vector<JSAMPLE> line(static_cast<std::size_t>(width) * 3);
    for (int row = 0; row < height; ++row) {
        // Smooth, with noise that grows to the right.
        for (int i = 0; i < width * 3; ++i)
            line[static_cast<std::size_t>(i)] =
                static_cast<JSAMPLE>((row * 2 + i / 3 + i % 3 * 40 +
                                      static_cast<int>(random() % static_cast<unsigned>(1 + i / 12))) %
                                     256);
        JSAMPROW rows[] = {line.data()};
        jpeg_write_scanlines(&compressor, rows, 1);
    }
    jpeg_finish_compress(&compressor);
    jpeg_destroy_compress(&compressor);
    std::vector<std::uint8_t> file(made, made + bytes);
    std::free(made);
    return file;
}

}  // namespace hpcai500
