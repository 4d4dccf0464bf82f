// All kernels, over the vectors of the instruction set whose headers the including file has included. One
// file for each instruction set, compiled for it: nothing here may have external linkage but the table at the
// end, or the linker could hand AVX-512 code to a processor without it.
#include "kernels.h"

#include "core/gradients/quantised_layout.h"
#include "core/jpeg/baseline/inverse_dct.h"
#include "runs.h"

// Kernels of planes use what those of pixels have.
#include "core/climate/convert_kernel.inl"
#include "core/detection/detection_kernel.inl"
#include "core/gradients/compression_kernel.inl"
#include "core/jpeg/resize_kernel.inl"

#include "core/jpeg/planar_kernel.inl"

namespace hpcai500::baseline {
namespace {

#ifdef HPCAI500_WORDS
#include "core/jpeg/baseline/inverse_dct.inl"
#else
#include "core/jpeg/baseline/inverse_dct_portable.inl"
#endif

inline void clear_block(std::int16_t* block) {
    for (int i = 0; i < 64; i += vector_bytes / 2) store_vector(block + i, Words{});
}

#include "core/jpeg/baseline/kernel.inl"

}  // namespace
}  // namespace hpcai500::baseline

#define HPCAI500_KERNELS(isa)                           \
    const hpcai500::Kernels hpcai500::isa##_kernels = { \
        #isa,                                           \
        hpcai500::resize::kernel,                       \
        hpcai500::convert::kernel,                      \
        hpcai500::compression::kernel,                  \
        hpcai500::detection::kernel,                    \
        {hpcai500::baseline::decode_mcus, hpcai500::baseline::skip_mcus}};
