// A scan that the baseline decoder takes: what the header said of it, and its data.
#pragma once

#include <cstdint>
#include <span>

#include "huffman_table.h"

namespace hpcai500::baseline {

struct ScanComponent {
    HuffmanCode dc, ac;
    std::int16_t quantisation[64];  ///< in the order of a block's rows
};

/// One scan of 8-bit grey, or of Y, Cb and Cr, whose chroma has all samples of a line or every second.
struct Scan {
    int width, height;     ///< pixels
    int component_count;   ///< 1 or 3
    int across, down;      ///< luma samples to one of chroma: 1 x 1, 2 x 1 or 2 x 2
    int restart_interval;  ///< MCUs; 0 for none
    ScanComponent components[3];
    std::span<const std::uint8_t> data;  ///< behind the scan's header
};

}  // namespace hpcai500::baseline
