// The interface between the bucket functions and their inner loops (compression_kernel.inl), which are
// compiled for each instruction set. Plain pointers and numbers only, as in resize_kernel.h. Every value,
// sums of squares included, is computed by the same operations in the same order in each of them.
#pragma once

#include <cstdint>

namespace hpcai500 {

/// Values of one tensor, to or from one place of the buffer. Both are aligned to their items.
struct CastRun {
    const void* source;
    void* out;
    std::int64_t count;
    float scale;
    bool stream;  ///< bypass the cache where whole lines are written; needs publish() afterwards
};

/// Returns the sum of the squares of the float32 side (its values before the scale when packing, what was
/// written when unpacking); 0 from the kernels that do not sum. The order of the sum depends on `count` only.
using Cast = double (*)(const CastRun&);

/// Whole blocks of one tensor.
struct QuantiseRun {
    const float* source;  ///< the first block's first value
    float* residual;      ///< of the same values, or nullptr
    std::uint8_t* buffer;
    std::int64_t first_block, blocks;  ///< places in the buffer (quantised_layout.h)
    float scale;
};

struct DequantiseRun {
    const std::uint8_t* buffer;
    float* target;  ///< the first block's first value
    std::int64_t first_block, blocks;
    float scale;
    bool stream;  ///< as in CastRun; not where the target is added to
};

/// The first index is 0 float32, 1 float16, 2 bfloat16; the last, everywhere, whether squares are summed.
struct CompressionKernel {
    Cast pack[3][2];
    Cast unpack[3][2];
    double (*quantise[2])(const QuantiseRun&);
    double (*dequantise[2][2])(const DequantiseRun&);  ///< first by whether the target is added to
    double (*squares)(const float* values, std::int64_t count);
    /// To be called after the last run of a thread's work: stores that bypass the cache are not ordered by a
    /// mutex.
    void (*publish)();
    /// Of 64-byte lines, both sides aligned: copies past the cache, and the largest of all words without
    /// their highest bit.
    void (*copy_lines)(const void* from, void* to, std::int64_t lines);
    std::uint32_t (*read_lines)(const void* from, std::int64_t lines);
};

}  // namespace hpcai500
