// The interface between the decoder and its kernels (kernel.inl), which are compiled for each instruction
// set; which one runs is decided once, at run time. Plain pointers and numbers only, as for the resize.
#pragma once

#include <cstddef>
#include <cstdint>

#include "huffman_table.h"

namespace hpcai500::baseline {

/// Bytes that may be read behind the end of data: what one MCU can take when all of them are zero, and a load
/// more. An MCU has at most 6 blocks of 64 coefficients, of at most 16 + 15 bits each.
inline constexpr std::size_t padding_bytes = 6 * 64 * 4 + 64;

/// What coefficients are stored in.
inline constexpr int most_coefficient = 32767;

/// Where the next bit is: the upper `filled` bits of `window` are the next ones, `next` is the byte behind
/// them.
struct BitState {
    const std::uint8_t* next = nullptr;
    std::uint64_t window = 0;
    int filled = 0;
};

/// One component (Y, Cb or Cr) of a scan.
struct Component {
    const CodeTable *dc, *ac;
    const std::int16_t* quantisation;  ///< 64 factors, in the order of a block's rows; 32-byte aligned
    int across, down;                  ///< blocks of an MCU
    int predictor;                     ///< DC coefficient of the block before
    std::uint8_t* samples;             ///< upper left sample of the first MCU of the row that is kept
    std::ptrdiff_t stride;             ///< bytes from one row of samples to the next
};

/// A scan between two MCUs.
struct ScanState {
    BitState bits;
    const std::uint8_t* end;  ///< of the data; padding_bytes follow it
    Component components[3];
    int component_count;
};

struct BaselineKernel {
    /// Decodes `count` MCUs to samples, the first one `column` MCUs right of Component::samples. False, with
    /// the state undefined, for data that a baseline image of 8 bits does not have, or that ends.
    bool (*decode_mcus)(ScanState& scan, int column, int count);
    /// Passes over `count` MCUs. False as above.
    bool (*skip_mcus)(ScanState& scan, int count);
};

/// The one of kernels() (core/vectors/kernels.h).
const BaselineKernel& baseline_kernel();

}  // namespace hpcai500::baseline
