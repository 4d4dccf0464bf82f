// The twins of pack, unpack, quantise, dequantise and layer_norms on a CUDA device. Nothing in this header
// needs CUDA: a build without it has the same functions, which throw BuiltWithoutCuda.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cast.h"

namespace hpcai500 {

/// Where the work is put. `stream` is a cudaStream_t. `workspace` is compression_cuda_workspace() bytes of
/// the device, aligned to 8, and is free again when the stream has done the call's work.
struct CudaPlace {
    void* workspace;
    int device;
    void* stream;
};

/// Bytes for a bucket of `elements` values in `tensors` tensors.
std::size_t compression_cuda_workspace(std::int64_t tensors, std::int64_t elements);

/// Tensors that a bucket may have: their table travels with the kernel's arguments, so that nothing is copied
/// and nobody waits. 1600 from CUDA 12.1 and driver 530 on, 192 where one of them is older or there is no
/// driver.
std::int64_t compression_cuda_most_tensors();

// All pointers are the device's. Each function starts one kernel, and returns before the device is done;
// where norms are wanted, the stream clears a few bytes of the workspace before it. layer_norms_cuda takes
// any number of tensors, and starts a kernel for each compression_cuda_most_tensors() of them. Values are
// those of the processor to the bit, norms to 1e-12 of them; they are summed in an order that depends on the
// sizes and on where tensors lie between multiples of 16 bytes only. The others throw std::invalid_argument
// for more tensors than compression_cuda_most_tensors(); all throw std::runtime_error with CUDA's message.
void pack_cuda(SourceTensors sources, void* out, Wire wire, float scale, double* norms,
               const CudaPlace& place);
void unpack_cuda(const void* source, TargetTensors targets, Wire wire, float scale, double* norms,
                 const CudaPlace& place);
void quantise_cuda(SourceTensors sources, std::uint8_t* buffer, float* residual, float scale, double* norms,
                   const CudaPlace& place);
void dequantise_cuda(const std::uint8_t* buffer, TargetTensors targets, float scale, bool accumulate,
                     double* norms, const CudaPlace& place);
void layer_norms_cuda(SourceTensors tensors, double* norms, const CudaPlace& place);

}  // namespace hpcai500
