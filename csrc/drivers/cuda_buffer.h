// Memory of the device (or of its stand-in) that is exactly as large as asked for: whoever watches sees an
// element touched behind it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "core/cuda_call.h"

namespace hpcai500::drivers {

template <class Value>
class DeviceBuffer {
  public:
    explicit DeviceBuffer(std::size_t count) : count_(count) {
        check_cuda(cudaMalloc(&memory_, count * sizeof(Value)), "cudaMalloc");
    }
    explicit DeviceBuffer(const std::vector<Value>& values) : DeviceBuffer(values.size()) { write(values); }
    ~DeviceBuffer() { static_cast<void>(cudaFree(memory_)); }
    DeviceBuffer(const DeviceBuffer&) = delete;
    DeviceBuffer& operator=(const DeviceBuffer&) = delete;

    Value* data() const { return static_cast<Value*>(memory_); }
    std::size_t size() const { return count_; }

    /// `values` has size() values.
    void write(const std::vector<Value>& values) {
        check_cuda(cudaMemcpy(memory_, values.data(), count_ * sizeof(Value), cudaMemcpyHostToDevice),
                   "copying to the device");
    }
    /// Waits for the device.
    std::vector<Value> read() const {
        std::vector<Value> values(count_);
        check_cuda(cudaDeviceSynchronize(), "waiting for the device");
        check_cuda(cudaMemcpy(values.data(), memory_, count_ * sizeof(Value), cudaMemcpyDeviceToHost),
                   "copying from the device");
        return values;
    }

  private:
    std::size_t count_;
    void* memory_ = nullptr;
};

}  // namespace hpcai500::drivers
